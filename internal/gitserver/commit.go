package gitserver

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Edit describes a commit. Paths use slashes; contents may be any bytes.
type Edit struct {
	Write     map[string]string // regular files and their contents
	Exec      map[string]string // executable files and their contents
	Link      map[string]string // symbolic links and their targets
	Submodule map[string]string // submodules and their commits
	Delete    []string          // files or directories to delete before writing
	Parent    string            // parent commit; empty for the tip of the branch
	Orphan    bool              // start without parent and files
	Message   string            // default "Change N"
}

// Commit creates a commit and sets the branch to it, by force if necessary. It runs one git process, for a few
// milliseconds.
func (s *Server) Commit(ctx context.Context, repo, branch string, edit Edit) (string, error) {
	n := s.commits.Add(1)
	message := edit.Message
	if message == "" {
		message = fmt.Sprintf("Change %d", n)
	}
	parent := edit.Parent
	if parent == "" && !edit.Orphan {
		parent = s.Head(repo, "refs/heads/"+branch)
	}
	var script bytes.Buffer
	fmt.Fprintf(&script, "commit refs/heads/%s\nmark :1\n", branch)
	fmt.Fprintf(&script, "committer %s <%s> %d +0000\n", author, email, epoch+n)
	writeData(&script, message)
	if parent != "" {
		fmt.Fprintf(&script, "from %s\n", parent)
	} else {
		script.WriteString("deleteall\n")
	}
	edit.writeTo(&script)
	script.WriteString("\nget-mark :1\ndone\n")
	if parent == "" {
		// Otherwise fast-import would use the existing branch as parent of an orphan.
		if err := s.DeleteRef(ctx, repo, "refs/heads/"+branch); err != nil {
			return "", fmt.Errorf("commit to %s: %w", repo, err)
		}
	}
	commit, err := s.Git(ctx, repo, script.String(), "fast-import", "--quiet", "--force", "--done", "--date-format=raw")
	if err != nil {
		return "", fmt.Errorf("commit to %s: %w", repo, err)
	}
	return commit, nil
}

func (edit Edit) writeTo(script *bytes.Buffer) {
	for _, path := range edit.Delete {
		fmt.Fprintf(script, "D %s\n", quotePath(path))
	}
	for _, group := range []struct {
		mode  string
		files map[string]string
	}{{"100644", edit.Write}, {"100755", edit.Exec}, {"120000", edit.Link}} {
		for _, path := range slices.Sorted(maps.Keys(group.files)) {
			fmt.Fprintf(script, "M %s inline %s\n", group.mode, quotePath(path))
			writeData(script, group.files[path])
		}
	}
	for _, path := range slices.Sorted(maps.Keys(edit.Submodule)) {
		fmt.Fprintf(script, "M 160000 %s %s\n", edit.Submodule[path], quotePath(path))
	}
}

func writeData(script *bytes.Buffer, data string) {
	fmt.Fprintf(script, "data %d\n%s\n", len(data), data)
}

// quotePath quotes a path of arbitrary bytes for fast-import.
func quotePath(path string) string {
	var quoted strings.Builder
	quoted.WriteByte('"')
	for i := range len(path) {
		fmt.Fprintf(&quoted, "\\%03o", path[i])
	}
	quoted.WriteByte('"')
	return quoted.String()
}

// Entry is an entry of a raw tree. It is not validated.
type Entry struct {
	Mode string // such as "100644", "120000", "40000" or "160000"
	Name string
	Hash string
}

// Blob writes a blob and returns its hash.
func (s *Server) Blob(ctx context.Context, repo, content string) (string, error) {
	return s.Git(ctx, repo, content, "hash-object", "-w", "--stdin")
}

// Tree writes a tree of exactly these entries in this order, even if they are invalid, and returns its hash.
func (s *Server) Tree(ctx context.Context, repo string, entries ...Entry) (string, error) {
	var raw bytes.Buffer
	for _, entry := range entries {
		hash, err := hex.DecodeString(entry.Hash)
		if err != nil {
			return "", fmt.Errorf("tree entry %q: %w", entry.Name, err)
		}
		fmt.Fprintf(&raw, "%s %s\x00%s", entry.Mode, entry.Name, hash)
	}
	return s.Git(ctx, repo, raw.String(), "hash-object", "-t", "tree", "-w", "--stdin", "--literally")
}

// CommitTree creates a commit of a tree from [Server.Tree], without parents, and sets the branch to it.
func (s *Server) CommitTree(ctx context.Context, repo, branch, tree string) (string, error) {
	s.commits.Add(1)
	commit, err := s.Git(ctx, repo, "", "commit-tree", "-m", "Raw tree", tree)
	if err != nil {
		return "", err
	}
	return commit, s.SetRef(ctx, repo, "refs/heads/"+branch, commit)
}
