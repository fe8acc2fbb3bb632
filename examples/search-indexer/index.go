package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"lockstep/events"
)

// index is the index of a repository. Fences order results.
type index struct {
	Repo    string
	Removed uint64              // fence of the last removal
	Refs    map[string]snapshot // by ref
}

// snapshot is the index of one commit.
type snapshot struct {
	Commit string
	Fence  uint64           // of its last result
	Paths  map[string]paths // the files that contain a word, by word
}

type paths map[string]struct{}

// past reports whether the index is newer than a result.
func (x *index) past(r events.Result) bool {
	return r.Fence < max(x.Removed, x.Refs[r.Ref.String()].Fence)
}

// remove deletes all snapshots up to fence, the fence of a removal.
func (x *index) remove(fence uint64) {
	x.Removed = max(x.Removed, fence)
	maps.DeleteFunc(x.Refs, func(_ string, s snapshot) bool { return s.Fence <= fence })
}

// without returns the snapshot without the words of some files. It modifies s.
func (s snapshot) without(files []events.File) snapshot {
	if s.Paths == nil {
		s.Paths = map[string]paths{}
	}
	for word, in := range s.Paths {
		for _, file := range files {
			delete(in, printable(file.Name()))
			delete(in, printable(file.OldName())) // of a renamed file
		}
		if len(in) == 0 {
			delete(s.Paths, word)
		}
	}
	return s
}

const maxFile = 1 << 20 // bytes; larger files are not indexed

// add adds the words of a file. Links, submodules and binary files are skipped.
func (s snapshot) add(tree *os.Root, path string) error {
	info, err := tree.Lstat(filepath.FromSlash(path))
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxFile {
		return err
	}
	file, err := tree.Open(filepath.FromSlash(path))
	if err != nil {
		return err
	}
	defer file.Close()
	content, err := io.ReadAll(file)
	if err != nil || bytes.IndexByte(content, 0) >= 0 {
		return err
	}
	for word := range strings.FieldsFuncSeq(strings.ToLower(string(content)), noWord) {
		if s.Paths[word] == nil {
			s.Paths[word] = paths{}
		}
		s.Paths[word][printable(path)] = struct{}{}
	}
	return nil
}

// printable returns a path as JSON can hold it.
func printable(path string) string {
	if utf8.ValidString(path) {
		return path
	}
	return strconv.Quote(path)
}

func noWord(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '_' }

// indexes is a folder of indexes, one file per repository. Files are replaced atomically, so a search sees one commit.
type indexes string

func (dir indexes) file(repo events.RepoPath) string {
	return filepath.Join(string(dir), strings.ReplaceAll(repo.Key(), "/", "%2F")+".json")
}

// load returns the index of a repository, empty if there is none.
func (dir indexes) load(repo events.RepoPath) (index, error) {
	x, err := load(dir.file(repo))
	if errors.Is(err, fs.ErrNotExist) {
		return index{Repo: repo.String(), Refs: map[string]snapshot{}}, nil
	}
	return x, err
}

func load(path string) (index, error) {
	document, err := os.ReadFile(path)
	if err != nil {
		return index{}, err
	}
	var x index
	if err := json.Unmarshal(document, &x); err != nil {
		return index{}, fmt.Errorf("index %s: %w; delete it and sync the repository again", path, err)
	}
	return x, nil
}

func (dir indexes) save(repo events.RepoPath, x index) error {
	document, err := json.Marshal(x)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(string(dir), 0o755); err != nil {
		return err
	}
	temp, err := os.CreateTemp(string(dir), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name())
	_, err = temp.Write(document)
	if err := errors.Join(err, temp.Sync(), temp.Close()); err != nil {
		return err
	}
	return os.Rename(temp.Name(), dir.file(repo))
}

// search returns where a word is, as sorted "owner/name@ref: path".
func (dir indexes) search(word string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(string(dir), "*.json"))
	if err != nil {
		return nil, err
	}
	var hits []string
	for _, file := range files {
		x, err := load(file)
		if err != nil {
			return nil, err
		}
		for ref, s := range x.Refs {
			for path := range s.Paths[strings.ToLower(word)] {
				hits = append(hits, x.Repo+"@"+ref+": "+path)
			}
		}
	}
	slices.Sort(hits)
	return hits, nil
}
