package publish

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"lockstep/events"
	"lockstep/internal/gitserver"
)

const largestPushed = 1 << 20 // bytes of a file that a push changes

// prepare makes the repository on the server, packed as forges keep theirs.
func (r *run) prepare(ctx context.Context, subject subject) (err error) {
	if r.repo, err = events.ParseRepoPath(name); err != nil {
		return err
	}
	if _, err := r.git.Generate(ctx, name, subject.shape); err != nil {
		return err
	}
	if _, err := r.git.Git(ctx, name, "", "repack", "-adfq"); err != nil {
		return err
	}
	return r.list(ctx)
}

// list counts the repository's files, folders and bytes, and chooses a file for each push, spread over all regular files.
func (r *run) list(ctx context.Context) error {
	list, err := r.git.Git(ctx, name, "", "ls-tree", "-r", "-l", "-z", "--full-tree", gitserver.Main)
	if err != nil {
		return err
	}
	var regular []string
	folders := map[string]bool{}
	for record := range strings.SplitSeq(strings.TrimSuffix(list, "\x00"), "\x00") {
		about, path, _ := strings.Cut(record, "\t")
		var mode, kind, hash, length string
		if _, err := fmt.Sscan(about, &mode, &kind, &hash, &length); err != nil {
			return fmt.Errorf("git ls-tree printed %q: %w", record, err)
		}
		var size int64
		if _, err := fmt.Sscan(length, &size); err != nil && kind == "blob" {
			return fmt.Errorf("git ls-tree printed %q: %w", record, err)
		}
		r.measured.Files++
		r.measured.Bytes += size
		for folder := filepath.Dir(path); folder != "." && !folders[folder]; folder = filepath.Dir(folder) {
			folders[folder] = true
		}
		if mode == "100644" && size <= largestPushed {
			regular = append(regular, path)
		}
	}
	r.measured.Folders = len(folders)
	if len(regular) == 0 {
		return errors.New("the repository has no regular file for a push to change")
	}
	for n := range r.pushes + warmUpPushes {
		r.changed = append(r.changed, regular[n*len(regular)/(r.pushes+warmUpPushes)])
	}
	return nil
}

// change pushes a file with one more line, and returns the commit and the file's content.
func (r *run) change(ctx context.Context, path string, n int) (commit, content string, err error) {
	content, err = r.git.Git(ctx, name, "", "cat-file", "blob", gitserver.Main+":"+path)
	if err != nil {
		return "", "", err
	}
	content += fmt.Sprintf("\npush %d\n", n+1)
	commit, err = r.git.Commit(ctx, name, gitserver.Main, gitserver.Edit{Write: map[string]string{path: content}})
	return commit, content, err
}
