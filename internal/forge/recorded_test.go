package forge_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"lockstep/internal/forge"
)

// origins are the modules with recorded payloads, and the directories in them.
var origins = map[string]struct{ module, folder string }{
	"drone":      {"github.com/drone/go-scm", "scm/driver/%s/testdata/webhooks"},
	"jenkins":    {"github.com/jenkins-x/go-scm", "scm/driver/%s/testdata/webhooks"},
	"playground": {"github.com/go-playground/webhooks/v6", "testdata/%s"},
	"gitlab":     {"gitlab.com/gitlab-org/api/client-go", "testdata/%s"},
}

// requireDownloads skips the test unless LOCKSTEP_TEST=all or LOCKSTEP_TEST_RECORDED=real.
func requireDownloads(t *testing.T) {
	t.Helper()
	if os.Getenv("LOCKSTEP_TEST") != "all" && os.Getenv("LOCKSTEP_TEST_RECORDED") != "real" {
		t.Skip("downloads recorded payloads; run with LOCKSTEP_TEST=all or LOCKSTEP_TEST_RECORDED=real")
	}
}

// modules downloads the modules listed in recorded/go.mod and returns their directories. Unless
// LOCKSTEP_TEST_RECORDED=real, it skips the test if the module proxy cannot be reached.
func modules(t *testing.T) map[string]string {
	t.Helper()
	requireDownloads(t)
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json")
	cmd.Dir = "recorded"
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=readonly", "GOWORK=off")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		if regexp.MustCompile(`dial tcp|handshake timeout|no such host|i/o timeout|connection refused|module lookup disabled`).MatchString(stderr.String()+string(out)) &&
			os.Getenv("LOCKSTEP_TEST_RECORDED") != "real" {
			t.Skip("the module proxy cannot be reached; LOCKSTEP_TEST_RECORDED=real makes this an error")
		}
		t.Fatalf("go mod download: %v\n%s%s", err, stderr.String(), out)
	}
	dirs := map[string]string{}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var module struct{ Path, Dir string }
		err := decoder.Decode(&module)
		if errors.Is(err, io.EOF) {
			return dirs
		}
		if err != nil {
			t.Fatal(err)
		}
		dirs[module.Path] = module.Dir
	}
}

// recording is a line of testdata/recorded.txt.
type recording struct{ origin, folder, file, kind, event, want string }

func recordings(t *testing.T) []recording {
	t.Helper()
	text, err := os.ReadFile("testdata/recorded.txt")
	if err != nil {
		t.Fatal(err)
	}
	var all []recording
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		f := strings.Split(line, "|")
		if len(f) != 6 {
			t.Fatalf("recorded.txt: %q", line)
		}
		all = append(all, recording{f[0], f[1], f[2], f[3], f[4], f[5]})
	}
	return all
}

func (r recording) dir(dirs map[string]string) string {
	o := origins[r.origin]
	return filepath.Join(dirs[o.module], fmt.Sprintf(o.folder, r.folder))
}

// deliver sends body as the forge would. It adds the server, which some deliveries leave out, by the source's urls or a
// header.
func (r recording) deliver(t *testing.T, body []byte) (forge.Delivery, error) {
	t.Helper()
	src := source(forge.Kind(r.kind))
	if src.Kind == forge.BitbucketDC && !bytes.Contains(body, []byte("server.bitbucket.local")) {
		src.URLs = []string{"https://bitbucket.example.com/scm/"}
	}
	header := signed(src, r.event, body)
	if src.Kind == forge.GitLab {
		header.Set("X-Gitlab-Instance", "https://gitlab.example.com")
	}
	return forge.Receive(src, header, body, now)
}

func TestRecordedPayloads(t *testing.T) {
	dirs := modules(t)
	seen := map[string]map[string]bool{} // origins by forge
	for _, r := range recordings(t) {
		body, err := os.ReadFile(filepath.Join(r.dir(dirs), r.file))
		if err != nil {
			t.Error(err)
			continue
		}
		d, err := r.deliver(t, body)
		if err != nil {
			t.Errorf("%v: %v", r, err)
			continue
		}
		if got := summary(d); got != r.want {
			t.Errorf("%s/%s/%s as %s:\n got %s (%s)\nwant %s", r.origin, r.folder, r.file, r.event, got, d.Ignored, r.want)
		}
		if seen[r.kind] == nil {
			seen[r.kind] = map[string]bool{}
		}
		seen[r.kind][r.origin] = true
	}
	for _, kind := range []forge.Kind{forge.GitHub, forge.GitLab, forge.Gitea, forge.BitbucketCloud, forge.BitbucketDC, forge.Azure} {
		if len(seen[string(kind)]) < 2 {
			t.Errorf("%s: payloads of %d origins, want at least two", kind, len(seen[string(kind)]))
		}
	}
}

// Files whose names suggest a push, a ref or a repository must be in recorded.txt, except for these.
var (
	aboutRefs = regexp.MustCompile(`push|branch|tag|delete|rename|transfer|destroy|repositor|repo-|project`)
	unrelated = regexp.MustCompile(`comment|pull_request|pr_|pr-|pull-request|issue|release|milestone|user|group|team|member|key|label|merge_request|check_|pipeline|emoji|` +
		`stage|project-card|project-column|project\.json$|installation|resource_access|commit-status|vulnerability|system-project-created|fork`)
)

// Every other recorded payload is ignored without a panic, whatever its event header says.
func TestOtherRecordedPayloadsAreIgnored(t *testing.T) {
	dirs := modules(t)
	listed := map[string]bool{}
	all := recordings(t)
	for _, r := range all {
		listed[filepath.Join(r.dir(dirs), r.file)] = true
	}
	eventsOf := map[string][]string{
		"github": {"push", "delete", "repository", "ping"}, "gitea": {"push", "delete", "repository"},
		"gitlab": {"Push Hook", "System Hook", "Note Hook"}, "bitbucket-cloud": {"repo:push", "repo:updated", "repo:deleted"},
		"bitbucket-dc": {"repo:refs_changed", "repo:modified"}, "azure": {""},
	}
	others := 0
	folders := slices.Clone(all)
	for i := range folders {
		folders[i].file, folders[i].event, folders[i].want = "", "", ""
	}
	for _, dir := range slices.Compact(folders) {
		files, err := filepath.Glob(filepath.Join(dir.dir(dirs), "*.json"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%v: %d files, %v", dir, len(files), err)
		}
		for _, file := range files {
			name := filepath.Base(file)
			if listed[file] {
				continue
			}
			if aboutRefs.MatchString(name) && !unrelated.MatchString(name) {
				t.Errorf("%s is not in testdata/recorded.txt", file)
			}
			body, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			others++
			for _, event := range eventsOf[dir.kind] {
				dir.event = event
				if d, err := dir.deliver(t, body); err == nil {
					checkSound(t, d)
				}
			}
		}
	}
	if others < 100 {
		t.Errorf("only %d other payloads; were they moved?", others)
	}
}

// TestGitHubExamples uses GitHub's own examples from its JavaScript library.
func TestGitHubExamples(t *testing.T) {
	requireDownloads(t)
	npm, err := exec.LookPath("npm")
	if err != nil {
		t.Skip("npm is not installed")
	}
	cmd := exec.CommandContext(t.Context(), npm, "pack", "--silent", "@octokit/webhooks-examples@7.6.1")
	cmd.Dir = t.TempDir()
	out, err := cmd.Output()
	if err != nil {
		t.Skip("npm pack does not work here")
	}
	const (
		hello = "Codertocat/Hello-World https://github.com/Codertocat/Hello-World.git,ssh://git@github.com:/Codertocat/Hello-World.git "
		octo  = "Octocoders/Hello-World https://github.com/Octocoders/Hello-World.git,ssh://git@github.com:/Octocoders/Hello-World.git "
		after = "6113728f27ae82c7b1a177c8d03f9e96e0adf246"
		gone  = "ref_deleted " + hello + "refs/tags/simple-tag - -"
		moved = "moved " + octo + "from octocat/Hello-World https://github.com/octocat/Hello-World.git,ssh://git@github.com:/octocat/Hello-World.git"
	)
	want := map[string][]string{
		"ping":   {"ping", "ping", "ping", "ping"},
		"delete": {gone, gone, gone, gone},
		"push": {
			"pushed " + hello + "refs/tags/simple-tag - " + after, gone, gone, gone,
			"pushed " + hello + "refs/heads/master - " + after, "pushed " + hello + "refs/heads/master - " + after, gone,
		},
		"repository": {
			"-", "-", "-", "-", "default_changed " + octo + "refs/heads/master - -", "-", "-", "-", "-", "-", moved, moved, moved,
		},
	}
	for _, e := range octokitExamples(t, filepath.Join(cmd.Dir, strings.TrimSpace(string(out)))) {
		wanted, of := want[e.Name]
		for i, body := range e.Examples {
			src := source(forge.GitHub)
			d, err := forge.Receive(src, signed(src, e.Name, body), body, now)
			switch {
			case err != nil:
				t.Errorf("%s %d: %v", e.Name, i, err)
			case of && i < len(wanted) && summary(d) != wanted[i]:
				t.Errorf("%s %d:\n got %s (%s)\nwant %s", e.Name, i, summary(d), d.Ignored, wanted[i])
			case !of && d.Ignored == "":
				t.Errorf("%s %d: %s, want it ignored", e.Name, i, summary(d))
			}
		}
		if of && len(e.Examples) != len(wanted) {
			t.Errorf("%s: %d examples, want %d", e.Name, len(e.Examples), len(wanted))
		}
	}
}

type octokitExample struct {
	Name     string            `json:"name"`
	Examples []json.RawMessage `json:"examples"`
}

func octokitExamples(t *testing.T, archive string) (all []octokitExample) {
	t.Helper()
	file, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	for files := tar.NewReader(unzipped); ; {
		header, err := files.Next()
		if err != nil {
			t.Fatal("no examples: ", err)
		}
		if header.Name != "package/api.github.com/index.json" {
			continue
		}
		if err := json.NewDecoder(files).Decode(&all); err != nil {
			t.Fatal(err)
		}
		return all
	}
}
