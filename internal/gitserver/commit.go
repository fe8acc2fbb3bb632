package gitserver

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// Edit is what one commit changes. Paths have slashes; contents may be any bytes.
type Edit struct {
	Write     map[string]string // regular files and their contents
	Exec      map[string]string // executable files and their contents
	Link      map[string]string // symbolic links and their targets
	Submodule map[string]string // submodules and their commits
	Delete    []string          // files or folders to delete, before anything is written
	Parent    string            // commit to build upon; empty for the branch's tip
	Orphan    bool              // build upon nothing: no parent, no files
	Message   string            // "Change N" when empty
}

// Commit makes a commit and points the branch at it, by force if need be. It takes one git process,
// a few milliseconds.
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
		// Without this, fast-import would build an orphan upon the branch it replaces.
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
		for _, path := range sortedKeys(group.files) {
			fmt.Fprintf(script, "M %s inline %s\n", group.mode, quotePath(path))
			writeData(script, group.files[path])
		}
	}
	for _, path := range sortedKeys(edit.Submodule) {
		fmt.Fprintf(script, "M 160000 %s %s\n", edit.Submodule[path], quotePath(path))
	}
}

func writeData(script *bytes.Buffer, data string) {
	fmt.Fprintf(script, "data %d\n%s\n", len(data), data)
}

// quotePath quotes a path for fast-import, whatever its bytes.
func quotePath(path string) string {
	var quoted strings.Builder
	quoted.WriteByte('"')
	for i := range len(path) {
		fmt.Fprintf(&quoted, "\\%03o", path[i])
	}
	quoted.WriteByte('"')
	return quoted.String()
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// Entry is one entry of a raw tree, unchecked.
type Entry struct {
	Mode string // as written in a tree: "100644", "120000", "40000", "160000"
	Name string
	Hash string
}

// Blob writes a blob and returns its hash.
func (s *Server) Blob(ctx context.Context, repo, content string) (string, error) {
	return s.Git(ctx, repo, content, "hash-object", "-w", "--stdin")
}

// Tree writes a tree of exactly these entries, in this order, however wrong they are, and returns
// its hash.
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

// CommitTree makes a commit without parents of a tree from [Server.Tree] and points the branch at it.
func (s *Server) CommitTree(ctx context.Context, repo, branch, tree string) (string, error) {
	s.commits.Add(1)
	commit, err := s.Git(ctx, repo, "", "commit-tree", "-m", "Raw tree", tree)
	if err != nil {
		return "", err
	}
	return commit, s.SetRef(ctx, repo, "refs/heads/"+branch, commit)
}
