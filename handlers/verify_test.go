package handlers_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	"lockstep/events"
	"lockstep/handlers"
)

// checkedRepos is a repository whose sync asks for the check of one candidate.
type checkedRepos struct {
	handlers.Repos
	candidate handlers.Candidate
}

func (r checkedRepos) Sync(ctx context.Context, req handlers.SyncRequest) (handlers.SyncResult, error) {
	if req.Check != nil {
		if check := req.Check(r.candidate.Tip, r.candidate.Default); check != nil {
			if err := check(ctx, r.candidate); err != nil {
				return handlers.SyncResult{}, fmt.Errorf("sync %s: %w", req.Repo, err)
			}
		}
	}
	return handlers.SyncResult{Tip: r.candidate.Tip, Path: "acme/widgets", Tree: "t"}, nil
}

type stateOf map[string]string

func (s stateOf) Fields(context.Context, events.RepoPath) (map[string]string, error) { return s, nil }
func (s stateOf) Deny(context.Context, events.RepoPath, string, string, events.Class) error {
	return nil
}

func (s stateOf) SetMisses(context.Context, events.RepoPath, events.Ref, string, int) error {
	return nil
}

type watchesOf []handlers.Watch

func (w watchesOf) Of(context.Context, events.RepoPath) ([]handlers.Watch, error)        { return w, nil }
func (w watchesOf) Move(context.Context, events.RepoPath, events.RepoPath, string) error { return nil }

type anonymous struct{}

func (anonymous) Resolve(context.Context, string, string) (handlers.Secret, error) {
	return handlers.Secret{}, nil
}
func (anonymous) URLs(string) ([]string, error) { return nil, nil }

func (anonymous) Refused(string, handlers.Secret) bool { return false }

// keysOf returns keys by name; a missing name is an error that is retried.
type keysOf map[string]handlers.Keys

func (k keysOf) VerificationKeys(name string) (handlers.Keys, error) {
	if keys, ok := k[name]; ok {
		return keys, nil
	}
	return handlers.Keys{}, events.Errorf(events.Retryable, events.ClassConfig, "read: input/output error")
}

// signedCommit returns a commit signed by a key, and the key's allowed_signers line.
func signedCommit(t *testing.T, seed byte) (content []byte, allowed string) {
	t.Helper()
	signer, err := ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize)))
	if err != nil {
		t.Fatal(err)
	}
	const payload = "tree 4b825dc642cb6eb9a060e54bf8d69288fbee4904\nauthor A <a> 1 +0000\ncommitter C <c> 1704164645 +0000\n\nx\n"
	sig, err := sshsig.Sign(strings.NewReader(payload), signer, sshsig.HashSHA512, "git")
	if err != nil {
		t.Fatal(err)
	}
	header := "gpgsig " + strings.ReplaceAll(strings.TrimSpace(string(sshsig.Armor(sig))), "\n", "\n ") + "\n"
	return []byte(strings.Replace(payload, "\n\n", "\n"+header+"\n", 1)), fmt.Sprintf("key%d %s", seed, ssh.MarshalAuthorizedKey(signer.PublicKey()))
}

// TestSignedTagOfAnotherCommit has a remote that says that a signed tag is of a commit which it is not of.
func TestSignedTagOfAnotherCommit(t *testing.T) {
	t.Parallel()
	signer, err := ssh.NewSignerFromKey(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)))
	if err != nil {
		t.Fatal(err)
	}
	good, evil, inner, outer := strings.Repeat("1", 40), strings.Repeat("2", 40), strings.Repeat("3", 40), strings.Repeat("4", 40)
	sign := func(target, kind string) []byte {
		payload := "object " + target + "\ntype " + kind + "\ntag v1\ntagger T <t> 1704164645 +0000\n\nx\n"
		sig, err := sshsig.Sign(strings.NewReader(payload), signer, sshsig.HashSHA512, "git")
		if err != nil {
			t.Fatal(err)
		}
		return append([]byte(payload), sshsig.Armor(sig)...)
	}
	objects := map[string][]byte{inner: sign(good, "commit"), outer: sign(inner, "tag")}
	ref, err := events.ParseRef("refs/tags/v1")
	if err != nil {
		t.Fatal(err)
	}
	repo, err := events.ParseRepoPath("acme/widgets")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ object, commit, want string }{
		{inner, good, ""}, {outer, good, ""}, {inner, evil, "not of commit 2222"}, {outer, evil, "not of commit 2222"},
	} {
		candidate := handlers.Candidate{
			Tip: handlers.Tip{Ref: ref, Commit: tc.commit}, Object: tc.object, Commits: []string{tc.commit},
			Read: func(id string) (string, []byte, error) {
				if tag := objects[id]; tag != nil {
					return "tag", tag, nil
				}
				return "commit", []byte("tree 4b825dc642cb6eb9a060e54bf8d69288fbee4904\n\nx\n"), nil
			},
		}
		h := handlers.Handlers{
			Repos: checkedRepos{candidate: candidate}, States: stateOf{}, Credentials: anonymous{},
			Watches: watchesOf{{App: "docs", Ref: selector{"refs/tags/v1"}, Verify: handlers.VerifyRequire, VerifyKeys: "team"}},
			Keys:    keysOf{"team": {AllowedSigners: "key " + string(ssh.MarshalAuthorizedKey(signer.PublicKey()))}},
		}
		outcome, err := h.Sync(t.Context(), handlers.Job{
			Change: events.Change{ID: "1", Type: events.ChangePushed, Repo: repo, URL: "https://example.com/acme/widgets.git", Ref: ref, App: "docs"},
			Entry:  "1-0", Attempt: 1, Fence: 7,
			Latest: func(context.Context) (string, error) { return "", nil }, Newest: func(context.Context) (string, error) { return "", nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		if r := outcome.Result; !strings.Contains(r.Error, tc.want) || (r.Error == "") != (tc.want == "") {
			t.Errorf("%.4s of %.4s: got %q, want %q", tc.object, tc.commit, r.Error, tc.want)
		}
	}
}

func TestVerificationOfWatches(t *testing.T) {
	t.Parallel()
	main, err := events.ParseRef("refs/heads/main")
	if err != nil {
		t.Fatal(err)
	}
	content, allowed := signedCommit(t, 1)
	_, other := signedCommit(t, 2)
	keys := keysOf{"all": {AllowedSigners: allowed}, "team": {AllowedSigners: allowed}, "others": {AllowedSigners: other}, "broken": {AllowedSigners: "x"}}
	commits := make([]string, 10_000)
	for i := range commits {
		commits[i] = fmt.Sprintf("%040x", i+1)
	}
	candidate := func(n int) handlers.Candidate {
		return handlers.Candidate{
			Tip: handlers.Tip{Ref: main, Commit: commits[0]}, Default: true, Object: commits[0], Published: commits[9999], Commits: commits[:n],
			Read: func(string) (string, []byte, error) { return "commit", content, nil },
		}
	}
	rewound, large := candidate(1), candidate(10_000)
	rewound.Rewound = true
	large.Read = func(string) (string, []byte, error) {
		return "commit", append(content[:len(content):len(content)], make([]byte, 1<<20)...), nil
	}
	w := func(app string, v handlers.Verify, keys string) handlers.Watch {
		return handlers.Watch{App: app, Ref: selector{}, Verify: v, VerifyKeys: keys, Depth: events.DepthFull}
	}
	shallow := w("docs", handlers.VerifyRequire, "team")
	shallow.Depth = 0
	for name, tc := range map[string]struct {
		watches   watchesOf
		candidate handlers.Candidate
		class     events.Class // "" for a synced result
		want      string       // in the verification or the error
	}{
		"no rules":                   {watchesOf{w("docs", "", "")}, candidate(1), "", "<nil>"},
		"required":                   {watchesOf{w("docs", "require", "team")}, candidate(3), "", "{true key1 SHA256:"},
		"reported, not verified":     {watchesOf{w("docs", "report", "others")}, candidate(3), "", "is not trusted"},
		"reported, without keys":     {watchesOf{w("docs", "report", "broken")}, candidate(3), "", "cannot be used: allowedSigners: line 1"},
		"required, without keys":     {watchesOf{w("docs", "require", "broken")}, candidate(3), events.ClassUnverified, "cannot be used"},
		"another app requires":       {watchesOf{w("docs", "", ""), w("deploy", "require", "others")}, candidate(1), events.ClassUnverified, "app deploy requires"},
		"each with its keys":         {watchesOf{w("docs", "require", "team"), w("deploy", "require", "others")}, candidate(1), events.ClassUnverified, "app deploy requires"},
		"another app reports":        {watchesOf{w("docs", "", ""), w("deploy", "report", "others")}, candidate(1), "", "<nil>"},
		"one app, strictest":         {watchesOf{w("docs", "report", "others"), w("docs", "require", "team")}, candidate(1), "", "{true key1"},
		"two required by one app":    {watchesOf{w("docs", "require", "all"), w("docs", "require", "others")}, candidate(1), events.ClassUnverified, "app docs requires"},
		"10,000 commits":             {watchesOf{w("docs", "require", "team")}, candidate(10_000), "", " 1000 true }"},
		"depth 1":                    {watchesOf{shallow}, candidate(10), "", " 1 true }"},
		"large commits":              {watchesOf{w("docs", "require", "team")}, large, events.ClassUnverified, "does not match"},
		"keys that cannot be read":   {watchesOf{w("docs", "require", "gone")}, candidate(1), events.ClassConfig, "input/output error"},
		"rewritten, refused":         {watchesOf{{App: "deploy", Ref: selector{}, NoRewind: true}}, rewound, events.ClassRewritten, "app deploy refuses"},
		"rewritten, not refused":     {watchesOf{w("docs", "require", "team")}, rewound, "", "{true key1"},
		"before signatures":          {watchesOf{w("docs", "require", "others"), {App: "deploy", Ref: selector{}, NoRewind: true}}, rewound, events.ClassRewritten, "was rewritten"},
		"rules of another ref alone": {watchesOf{{App: "deploy", Ref: selector{"refs/heads/x"}, NoRewind: true}}, rewound, "", "<nil>"},
	} {
		repo, err := events.ParseRepoPath("acme/widgets")
		if err != nil {
			t.Fatal(err)
		}
		h := handlers.Handlers{Repos: checkedRepos{candidate: tc.candidate}, States: stateOf{}, Credentials: anonymous{}, Watches: tc.watches, Keys: keys}
		outcome, err := h.Sync(t.Context(), handlers.Job{
			Change: events.Change{ID: "1", Type: events.ChangePushed, Repo: repo, URL: "https://example.com/acme/widgets.git", App: "docs"},
			Entry:  "1-0", Attempt: 1, Fence: 7,
			Latest: func(context.Context) (string, error) { return "", nil }, Newest: func(context.Context) (string, error) { return "", nil },
		})
		r := outcome.Result
		switch {
		case tc.class == events.ClassConfig:
			if events.ClassOf(err) != tc.class || events.DispositionOf(err) != events.Retryable || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: got %v", name, err)
			}
			continue
		case err != nil:
			t.Errorf("%s: %v", name, errors.Unwrap(err))
			continue
		}
		got := fmt.Sprint(r.Error)
		if tc.class == "" {
			got = "<nil>"
			if r.Verification != nil {
				got = fmt.Sprint(*r.Verification)
			}
		}
		if r.Class != tc.class || !strings.Contains(got, tc.want) || (r.Type == events.ResultFailed) != (tc.class != "") {
			t.Errorf("%s: got %s, %s, want %q", name, r.Class, got, tc.want)
		}
		if r.Verification != nil && r.Class == events.ClassUnverified && r.Verification.Verified {
			t.Errorf("%s: refused as not verified, with %+v", name, *r.Verification)
		}
		if refused := outcome.State["refused"]; (refused == "refs/heads/main") != (tc.class != "") {
			t.Errorf("%s: refused %q", name, refused)
		}
	}
}

// selector selects one ref, or the default branch.
type selector struct{ name string }

func (s selector) IsDefault() bool              { return s.name == "" }
func (s selector) Matches(ref events.Ref) bool  { return s.MatchesName(ref.String()) }
func (s selector) MatchesName(name string) bool { return s.name != "" && name == s.name }
func (s selector) String() string               { return s.name }
func (s selector) Ref() (events.Ref, bool) {
	ref, err := events.ParseRef(s.name)
	return ref, err == nil
}

// TestChecksSeeTheDepthOfTheirWatch has a change of another app, with less history, come before the first one of a watch with rules.
func TestChecksSeeTheDepthOfTheirWatch(t *testing.T) {
	w := newWorld(t)
	w.create(map[string]string{"a": "1"})
	w.mustHandle("1-0", events.Change{URL: w.git.URL("acme/widgets"), App: "docs"})
	w.handlers.Watches = watchesOf{{App: "docs", Ref: selector{}}, {App: "deploy", Ref: selector{}, NoRewind: true, Depth: events.DepthFull}}
	second := w.push(map[string]string{"a": "2"})
	if r := w.mustHandle("2-0", events.Change{URL: w.git.URL("acme/widgets"), App: "docs"}); r.After != second {
		t.Errorf("got %+v, want %s", r, second)
	}
}
