package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lockstep/internal/gitserver"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/redisx"
	"lockstep/internal/term"
	"lockstep/internal/testenv"
)

// TestRandomPushesMatchGitClone pushes random changes to repositories of both object formats: files, executable bits, links,
// submodules, renames, force pushes, branches and tags. It compares each tree with git's clone, over protocol 2 or 0, at depth 1 or
// in full, and kills the worker at random times.
func TestRandomPushesMatchGitClone(t *testing.T) {
	testenv.Long(t)
	testenv.SkipUnderRace(t)
	t.Parallel()
	pushes := testenv.Soak(15, 1000)
	for _, format := range []string{"sha1", "sha256"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			p := &pusher{T: t, random: rand.New(rand.NewPCG(testenv.Seed(t), 4))}
			p.mirror = mirror{git: proctest.StartGit(t), redis: redistest.Start(t, durable...).URL(), root: t.TempDir()}
			p.serve()
			p.history = []string{proctest.Must(p.git.CreateAs(t.Context(), format, pushedRepo, map[string]string{"README": format}))(t)}
			for i := range pushes {
				p.push(i)
				if t.Failed() {
					return
				}
			}
			stdout, stderr, code := proctest.RunLockstep(t, nil, "repos", "verify", "--all", "--redis", p.redis, "--root", p.root)
			if code != term.ExitDone {
				t.Errorf("verify: exit code %d\n%s%s", code, proctest.Tail(stdout, 2000), stderr)
			}
			t.Logf("%d pushes, %d of them forced, %d kills", pushes, p.forced, p.kills)
		})
	}
}

const pushedRepo = "acme/pushed"

// pusher pushes random changes.
type pusher struct {
	*testing.T
	mirror
	random        *rand.Rand
	worker        *proctest.Process
	history       []string // commits that main had
	forced, kills int
}

func (p *pusher) serve() {
	p.Helper()
	p.worker = proctest.Start(p.T, "serve", "--root", p.root, "--redis", p.redis, "--lease", "1s", "--lock-wait", "30s")
}

// oneOf reports true once in n calls.
func (p *pusher) oneOf(n int) bool { return p.random.IntN(n) == 0 }

// push makes a commit on main, or on another branch, and checks what is published for it.
func (p *pusher) push(i int) {
	p.Helper()
	branch, ref, parent := gitserver.Main, "", p.history[len(p.history)-1]
	switch {
	case p.oneOf(8):
		parent = p.history[p.random.IntN(len(p.history))]
		p.forced++
	case p.oneOf(8):
		branch = fmt.Sprint("side/", p.random.IntN(5))
		ref = branch
	}
	edit := p.edit(i, parent)
	commit := proctest.Must(p.git.Commit(p.Context(), pushedRepo, branch, edit))(p.T)
	if branch == gitserver.Main {
		p.history = append(p.history, commit)
	}
	switch {
	case p.oneOf(10):
		ref = fmt.Sprintf("refs/tags/v%d", i)
		proctest.Must(0, p.git.Tag(p.Context(), pushedRepo, fmt.Sprint("v", i), commit))(p.T)
	case p.oneOf(10):
		ref = commit
	}
	p.git.IgnoreVersion(p.oneOf(3)) // protocol 0
	if p.oneOf(6) {
		p.kill(ref)
	}
	p.check(ref, commit)
}

// edit changes some of the files of a commit.
func (p *pusher) edit(i int, parent string) gitserver.Edit {
	p.Helper()
	edit := gitserver.Edit{Parent: parent, Write: map[string]string{}, Exec: map[string]string{}, Link: map[string]string{}, Submodule: map[string]string{}}
	listed := proctest.Must(p.git.Git(p.Context(), pushedRepo, "", "ls-tree", "-r", "-z", "--name-only", parent))(p.T)
	files := strings.FieldsFunc(listed, func(r rune) bool { return r == 0 })
	for range 1 + p.random.IntN(5) {
		path := fmt.Sprintf("d%d/f%d", p.random.IntN(4), p.random.IntN(40))
		if len(files) > 0 && p.oneOf(3) {
			path = files[p.random.IntN(len(files))]
		}
		text := strings.Repeat(fmt.Sprintf("%d of push %d\n", p.random.Uint64(), i), 1+p.random.IntN(200))
		switch p.random.IntN(8) {
		case 0:
			edit.Exec[path] = text
		case 1:
			edit.Link[path+"-link"] = path
		case 2:
			edit.Submodule[path+"-module"] = strings.Repeat(fmt.Sprintf("%x", 1+p.random.IntN(15)), len(parent))
		case 3:
			edit.Delete = append(edit.Delete, path)
		case 4: // rename
			if kind, err := p.git.Git(p.Context(), pushedRepo, "", "cat-file", "blob", parent+":"+path); err == nil {
				edit.Delete = append(edit.Delete, path)
				edit.Write["moved/"+filepath.Base(path)] = kind + "\n"
			}
		case 5: // a file becomes a folder
			edit.Delete = append(edit.Delete, path)
			edit.Write[path+"/below"] = text
		default:
			edit.Write[path] = text
		}
	}
	if p.oneOf(10) { // more than become loose objects
		for n := range 120 {
			edit.Write[fmt.Sprintf("many/%d/%d", n%7, n)] = fmt.Sprintln(i, n)
		}
	}
	return edit
}

// kill publishes a change and kills the worker within its work. What is published then must be whole.
func (p *pusher) kill(ref string) {
	p.Helper()
	args := []string{"publish", p.git.URL(pushedRepo), "--redis", p.redis, "--repo", pushedRepo}
	if ref != "" {
		args = append(args, "--ref", ref)
	}
	if _, stderr, code := proctest.RunLockstep(p.T, nil, args...); code != term.ExitDone {
		p.Fatalf("publish: exit code %d: %s", code, stderr)
	}
	redisx.Pause(p.Context(), time.Duration(p.random.IntN(100))*time.Millisecond) // at a random time
	p.worker.Kill()
	p.kills++
	if _, err := os.Stat(filepath.Join(p.root, pushedRepo)); err == nil {
		p.mustBeWhole(filepath.Join(p.root, pushedRepo))
	}
	p.serve()
}

// mustBeWhole checks a tree with git.
func (p *pusher) mustBeWhole(tree string) {
	p.Helper()
	if status := proctest.Must(gitserver.Git(p.Context(), tree, "", "status", "--porcelain"))(p.T); status != "" {
		p.Errorf("git status in %s:\n%s", tree, status)
	}
	proctest.Must(gitserver.Git(p.Context(), tree, "", "fsck", "--full", "--strict"))(p.T)
}

// check compares a ref with git's clone of its commit.
func (p *pusher) check(ref, commit string) {
	p.Helper()
	var options []string
	if p.oneOf(4) {
		options = []string{"--depth", "full"}
	}
	from := ref
	if ref == "" {
		from = "HEAD"
	}
	p.compare(p.T, pushedRepo, ref, p.clone(p.T, pushedRepo, from), commit, options...)
	name := pushedRepo
	if ref != "" {
		name += "@" + strings.ReplaceAll(ref, "/", "%2F")
	}
	tree := filepath.Join(p.root, name)
	p.mustBeWhole(tree)
	if len(options) > 0 {
		want := proctest.Must(p.git.Git(p.Context(), pushedRepo, "", "rev-list", commit))(p.T)
		if got := proctest.Must(gitserver.Git(p.Context(), tree, "", "rev-list", "HEAD"))(p.T); got != want {
			p.Errorf("full history:\n%s\nwant\n%s", got, want)
		}
	}
}
