package handlers

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	"lockstep/events"
	"lockstep/internal/credential"
	"lockstep/internal/state"
	"lockstep/internal/testenv"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// verified inspects a candidate for a change of docs as a sync does, and returns its outcome.
func (h *Handlers) verified(t *testing.T, watches []watch.Watch, c volume.Candidate) (Outcome, error) {
	t.Helper()
	change := events.Change{ID: "1", Type: events.ChangePushed, URL: "https://example.com/acme/widgets.git", App: "docs"}
	change.Repo = testenv.Must(events.ParseRepoPath("acme/widgets"))(t)
	i := h.inspect(Job{Change: change, Entry: "1-0", Attempt: 1, Fence: 7}, watches, state.Repo{})
	if i == nil {
		return Outcome{}, nil
	}
	var err error
	if check := i.checkOf(c.Tip, c.Default); check != nil {
		err = check(t.Context(), c)
	}
	if refused, ok := i.refusal(err); ok {
		return refused, nil
	}
	fields, _ := i.fields(state.Repo{}, c.Ref)
	return Outcome{Result: events.Result{Verification: i.own("docs")}, State: fields}, err
}

// withKeys returns handlers with the allowed signers of credentials. The keys of "gone" cannot be read.
func withKeys(t *testing.T, signers map[string]string) *Handlers {
	t.Helper()
	dir := t.TempDir()
	for name, text := range signers {
		at := filepath.Join(dir, name)
		must(t, os.Mkdir(at, 0o700))
		must(t, os.WriteFile(filepath.Join(at, "allowedSigners"), []byte(text), 0o600))
	}
	must(t, os.MkdirAll(filepath.Join(dir, "gone/allowedSigners"), 0o700))
	return &Handlers{Credentials: credential.NewStore(dir, func(string) string { return "" })}
}

func selector(t *testing.T, text string) watch.Selector {
	t.Helper()
	return testenv.Must(watch.ParseSelector(text))(t)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
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
	h := withKeys(t, map[string]string{"team": "key " + string(ssh.MarshalAuthorizedKey(signer.PublicKey()))})
	watches := []watch.Watch{{App: "docs", Ref: selector(t, "refs/tags/v1"), Verify: watch.VerifyRequire, VerifyKeys: "team"}}
	for _, tc := range []struct{ object, commit, want string }{
		{inner, good, ""}, {outer, good, ""}, {inner, evil, "not of commit 2222"}, {outer, evil, "not of commit 2222"},
	} {
		candidate := volume.Candidate{
			Tip: volume.Tip{Ref: ref, Commit: tc.commit}, Object: tc.object, Commits: []string{tc.commit},
			Read: func(id string) (string, []byte, error) {
				if tag := objects[id]; tag != nil {
					return "tag", tag, nil
				}
				return "commit", []byte("tree 4b825dc642cb6eb9a060e54bf8d69288fbee4904\n\nx\n"), nil
			},
		}
		outcome, err := h.verified(t, watches, candidate)
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
	h := withKeys(t, map[string]string{"all": allowed, "team": allowed, "others": other, "broken": "x"})
	commits := make([]string, 10_000)
	for i := range commits {
		commits[i] = fmt.Sprintf("%040x", i+1)
	}
	candidate := func(n int) volume.Candidate {
		return volume.Candidate{
			Tip: volume.Tip{Ref: main, Commit: commits[0]}, Default: true, Object: commits[0], Published: commits[9999], Commits: commits[:n],
			Read: func(string) (string, []byte, error) { return "commit", content, nil },
		}
	}
	rewound, large := candidate(1), candidate(10_000)
	rewound.Rewound = true
	large.Read = func(string) (string, []byte, error) {
		return "commit", append(content[:len(content):len(content)], make([]byte, 1<<20)...), nil
	}
	w := func(app string, v watch.Verify, keys string) watch.Watch {
		return watch.Watch{App: app, Verify: v, VerifyKeys: keys, Depth: events.DepthFull}
	}
	shallow := w("docs", watch.VerifyRequire, "team")
	shallow.Depth = 0
	for name, tc := range map[string]struct {
		watches   []watch.Watch
		candidate volume.Candidate
		class     events.Class // "" for a synced result
		want      string       // in the verification or the error
	}{
		"no rules":                   {[]watch.Watch{w("docs", "", "")}, candidate(1), "", "<nil>"},
		"required":                   {[]watch.Watch{w("docs", "require", "team")}, candidate(3), "", "{true key1 SHA256:"},
		"reported, not verified":     {[]watch.Watch{w("docs", "report", "others")}, candidate(3), "", "is not trusted"},
		"reported, without keys":     {[]watch.Watch{w("docs", "report", "broken")}, candidate(3), "", "cannot be used: allowedSigners: line 1"},
		"required, without keys":     {[]watch.Watch{w("docs", "require", "broken")}, candidate(3), events.ClassRefused, "cannot be used"},
		"another app requires":       {[]watch.Watch{w("docs", "", ""), w("deploy", "require", "others")}, candidate(1), events.ClassRefused, "app deploy requires"},
		"each with its keys":         {[]watch.Watch{w("docs", "require", "team"), w("deploy", "require", "others")}, candidate(1), events.ClassRefused, "app deploy requires"},
		"another app reports":        {[]watch.Watch{w("docs", "", ""), w("deploy", "report", "others")}, candidate(1), "", "<nil>"},
		"one app, strictest":         {[]watch.Watch{w("docs", "report", "others"), w("docs", "require", "team")}, candidate(1), "", "{true key1"},
		"two required by one app":    {[]watch.Watch{w("docs", "require", "all"), w("docs", "require", "others")}, candidate(1), events.ClassRefused, "app docs requires"},
		"10,000 commits":             {[]watch.Watch{w("docs", "require", "team")}, candidate(10_000), "", " 1000 true }"},
		"depth 1":                    {[]watch.Watch{shallow}, candidate(10), "", " 1 true }"},
		"large commits":              {[]watch.Watch{w("docs", "require", "team")}, large, events.ClassRefused, "does not match"},
		"keys that cannot be read":   {[]watch.Watch{w("docs", "require", "gone")}, candidate(1), events.ClassConfig, "is a directory"},
		"rewritten, refused":         {[]watch.Watch{{App: "deploy", NoRewind: true}}, rewound, events.ClassRefused, "app deploy refuses"},
		"rewritten, not refused":     {[]watch.Watch{w("docs", "require", "team")}, rewound, "", "{true key1"},
		"before signatures":          {[]watch.Watch{w("docs", "require", "others"), {App: "deploy", NoRewind: true}}, rewound, events.ClassRefused, "was rewritten"},
		"rules of another ref alone": {[]watch.Watch{{App: "deploy", Ref: selector(t, "refs/heads/x"), NoRewind: true}}, rewound, "", "<nil>"},
	} {
		outcome, err := h.verified(t, tc.watches, tc.candidate)
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
		if r.Verification != nil && r.Class == events.ClassRefused && r.Verification.Verified {
			t.Errorf("%s: refused as not verified, with %+v", name, *r.Verification)
		}
		if refused := outcome.State["refused"]; (refused == "refs/heads/main") != (tc.class != "") {
			t.Errorf("%s: refused %q", name, refused)
		}
	}
}
