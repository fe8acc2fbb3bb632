package volume

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"lockstep/events"
	"lockstep/internal/disk"
)

const (
	adminDir      = ".lockstep"
	maxFolderName = 200 // bytes; a longer one ends in its hash
	slashInName   = "%2F"
)

// folder is a repository's folder. All names in it are defined in this file.
type folder struct{ dir string }

// folder maps "group/sub/name" to "group/sub%2Fname", and "acme/widgets" to itself. Repository paths contain no "%", so
// names are unique and never nested.
func (v *Volume) folder(repo events.RepoPath) folder {
	owner, rest, _ := strings.Cut(repo.Key(), "/")
	name := strings.ReplaceAll(rest, "/", slashInName)
	if len(name) > maxFolderName {
		sum := sha256.Sum256([]byte(name))
		name = name[:maxFolderName-20] + "%" + hex.EncodeToString(sum[:8])
	}
	return folder{filepath.Join(v.reposDir(), owner, name)}
}

// folderOf returns the folder of the repository that a tree belongs to.
func folderOf(tree string) folder { return folder{filepath.Dir(filepath.Dir(tree))} }

func (v *Volume) reposDir() string { return filepath.Join(v.root, adminDir, "repos") }

func (f folder) lock() string          { return filepath.Join(f.dir, "lock") }
func (f folder) fence() string         { return filepath.Join(f.dir, "fence") }
func (f folder) binding() string       { return filepath.Join(f.dir, "repo.json") }
func (f folder) stores() string        { return filepath.Join(f.dir, "stores") }
func (f folder) trees() string         { return filepath.Join(f.dir, "trees") }
func (f folder) tree(n string) string  { return filepath.Join(f.trees(), n) }
func (f folder) retired() string       { return filepath.Join(f.dir, "retired") }
func (f folder) quarantines() string   { return filepath.Join(f.dir, "quarantine") }
func (f folder) trash() string         { return filepath.Join(f.dir, "trash") }
func (f folder) mark(n string) string  { return filepath.Join(f.retired(), n) }
func (f folder) flip(n uint64) string  { return filepath.Join(f.dir, fmt.Sprint(flipPrefix, n)) }
func (f folder) building() string      { return filepath.Join(f.dir, "building") }
func (f folder) build(n uint64) string { return filepath.Join(f.building(), fmt.Sprint(n)) }

// tidied is a file whose mtime is when all trees were last looked at.
func (f folder) tidied() string { return filepath.Join(f.dir, "tidied") }

func (f folder) prepared() string     { return filepath.Join(f.dir, "prepared") }
func (f folder) next(n string) string { return filepath.Join(f.prepared(), n) }
func (f folder) quarantine(n uint64) string {
	return filepath.Join(f.quarantines(), fmt.Sprint(n))
}

const flipPrefix = "flip-"

// unusedPath returns path, or path with a numbered suffix if that exists. One holder may publish several refs
// of one commit, each with its own tree.
func unusedPath(path string) (string, error) {
	unused := path
	for n := 2; ; n++ {
		_, err := os.Lstat(unused)
		if os.IsNotExist(err) {
			return unused, nil
		}
		if err != nil {
			return "", disk.Error("find an unused name", err)
		}
		unused = fmt.Sprintf("%s-%d", path, n)
	}
}
