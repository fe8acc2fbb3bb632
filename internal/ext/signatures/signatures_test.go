package signatures

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	"lockstep/events"
	"lockstep/internal/credential"
	"lockstep/internal/ext"
	"lockstep/internal/state"
	"lockstep/internal/testenv"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// verified asks the part of a sync about a candidate, and returns what that sync's result for docs says.
func verified(t *testing.T, e ext.Extension, watches []watch.Watch, c volume.Candidate) (*events.Verification, error) {
	t.Helper()
	p := e.Join(ext.Sync{Watches: watches}).(*part)
	rules, err := p.Rules(c.Ref, c.Default)
	if rules == "" || err != nil {
		return nil, err
	}
	var check state.Check
	check.Verdicts, err = p.Admit(t.Context(), c)
	r := events.Result{Type: events.ResultSynced, App: "docs"}
	if refusal, ok := errors.AsType[*ext.Refusal](err); ok {
		r.Type, check.App = events.ResultFailed, refusal.App
	}
	p.Describe(&r, check)
	return r.Verification, err
}

// since returns a history for any older commit.
func since(h volume.History) func(context.Context, string) (volume.History, error) {
	return func(context.Context, string) (volume.History, error) { return h, nil }
}

// withKeys returns the extension with the allowed signers of credentials. The keys of "gone" cannot be read.
func withKeys(t *testing.T, signers map[string]string) ext.Extension {
	t.Helper()
	dir := t.TempDir()
	for name, text := range signers {
		at := filepath.Join(dir, name)
		must(t, os.Mkdir(at, 0o700))
		must(t, os.WriteFile(filepath.Join(at, "allowedSigners"), []byte(text), 0o600))
	}
	must(t, os.MkdirAll(filepath.Join(dir, "gone/allowedSigners"), 0o700))
	return New(credential.NewStore(dir, func(string) string { return "" }))
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
	watches := []watch.Watch{{App: "docs", Ref: selector(t, "refs/tags/v1"), Options: watch.With(Options{Verify: VerifyRequire, Keys: "team"})}}
	for _, tc := range []struct{ object, commit, want string }{
		{inner, good, ""}, {outer, good, ""}, {inner, evil, "not of commit 2222"}, {outer, evil, "not of commit 2222"},
	} {
		candidate := volume.Candidate{
			Tip: volume.Tip{Ref: ref, Commit: tc.commit}, Object: tc.object, Since: since(volume.History{Commits: []string{tc.commit}}),
			Read: func(id string) (string, []byte, error) {
				if tag := objects[id]; tag != nil {
					return "tag", tag, nil
				}
				return "commit", []byte("tree 4b825dc642cb6eb9a060e54bf8d69288fbee4904\n\nx\n"), nil
			},
		}
		_, err := verified(t, h, watches, candidate)
		if !strings.Contains(fmt.Sprint(err), tc.want) || (err == nil) != (tc.want == "") {
			t.Errorf("%.4s of %.4s: got %v, want %q", tc.object, tc.commit, err, tc.want)
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
			Tip: volume.Tip{Ref: main, Commit: commits[0]}, Default: true, Object: commits[0], Published: commits[9999], Since: since(volume.History{Commits: commits[:n]}),
			Read: func(string) (string, []byte, error) { return "commit", content, nil },
		}
	}
	rewound, large := candidate(1), candidate(10_000)
	rewound.Since = since(volume.History{Commits: commits[:1], Rewound: true})
	large.Read = func(string) (string, []byte, error) {
		return "commit", append(content[:len(content):len(content)], make([]byte, 1<<20)...), nil
	}
	w := func(app string, v Verify, keys string) watch.Watch {
		return watch.Watch{App: app, Depth: events.DepthFull, Options: watch.With(Options{Verify: v, Keys: keys})}
	}
	shallow := w("docs", VerifyRequire, "team")
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
		"rewritten, refused":         {[]watch.Watch{{App: "deploy", Options: watch.With(Options{NoRewind: true})}}, rewound, events.ClassRefused, "app deploy refuses"},
		"rewritten, not refused":     {[]watch.Watch{w("docs", "require", "team")}, rewound, "", "{true key1"},
		"before signatures":          {[]watch.Watch{w("docs", "require", "others"), {App: "deploy", Options: watch.With(Options{NoRewind: true})}}, rewound, events.ClassRefused, "was rewritten"},
		"rules of another ref alone": {[]watch.Watch{{App: "deploy", Ref: selector(t, "refs/heads/x"), Options: watch.With(Options{NoRewind: true})}}, rewound, "", "<nil>"},
	} {
		v, err := verified(t, h, tc.watches, tc.candidate)
		_, isRefused := errors.AsType[*ext.Refusal](err)
		switch {
		case tc.class == events.ClassConfig:
			if events.ClassOf(err) != tc.class || events.DispositionOf(err) != events.Retryable || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: got %v", name, err)
			}
			continue
		case isRefused != (tc.class != ""), err != nil && !isRefused:
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := fmt.Sprint(err)
		if v != nil && !isRefused {
			got = fmt.Sprint(*v)
		}
		if !strings.Contains(got, tc.want) {
			t.Errorf("%s: got %s, want %q", name, got, tc.want)
		}
		if v != nil && isRefused && v.Verified {
			t.Errorf("%s: refused as not verified, with %+v", name, *v)
		}
	}
}

const old, unsigned, signed = "1111111111111111111111111111111111111111", "2222222222222222222222222222222222222222",
	"3333333333333333333333333333333333333333"

// unsignedBefore returns a signed commit of the default branch main, which follows an unsigned one that has been added to old, and
// whose signer team is trusted.
func unsignedBefore(t *testing.T) (ext.Extension, volume.Candidate) {
	t.Helper()
	content, allowed := signedCommit(t, 1)
	main := testenv.Must(events.ParseRef("refs/heads/main"))(t)
	return withKeys(t, map[string]string{"team": allowed}), volume.Candidate{
		Tip: volume.Tip{Ref: main, Commit: signed}, Default: true, Object: signed,
		Since: func(_ context.Context, older string) (volume.History, error) {
			if older == old {
				return volume.History{Commits: []string{signed, unsigned}}, nil
			}
			return volume.History{Commits: []string{signed}}, nil
		},
		Read: func(id string) (string, []byte, error) {
			if id == unsigned {
				return "commit", []byte("tree 4b825dc642cb6eb9a060e54bf8d69288fbee4904\n\nx\n"), nil
			}
			return "commit", content, nil
		},
	}
}

// joined returns the part of a sync for watches that require verified commits, with a field.
func joined(t *testing.T, e ext.Extension, c volume.Candidate, field string, selectors ...string) *part {
	t.Helper()
	var watches []watch.Watch
	for _, text := range selectors {
		watches = append(watches, watch.Watch{
			App: "docs", Ref: selector(t, text), Depth: events.DepthFull, Options: watch.With(Options{Verify: VerifyRequire, Keys: "team"}),
		})
	}
	p := e.Join(ext.Sync{Watches: watches, Known: state.RepoOf(map[string]string{"signatures:" + field: old + " 1"})}).(*part)
	testenv.Must(p.Rules(c.Ref, true))(t)
	return p
}

// TestCommitsSinceADeletedBranch verifies what has been added to the last published commit of a branch that was deleted since, not only
// the last commit.
func TestCommitsSinceADeletedBranch(t *testing.T) {
	t.Parallel()
	e, c := unsignedBefore(t)
	for text, fields := range map[string]map[string]bool{
		"":     {"refs/heads/main": false, "default": true},
		"main": {"default": false, "refs/heads/main": true},
	} {
		for field, refused := range fields {
			if _, err := joined(t, e, c, field, text).Admit(t.Context(), c); (err != nil) != refused {
				t.Errorf("a watch of %q, with the last commit of %s: %v, want refused %v", text, field, err, refused)
			}
		}
	}
}

// TestVerdictOfTwoWatchesOfAnApp has them compare with other commits, so that one finds an unsigned commit since, and one does not.
func TestVerdictOfTwoWatchesOfAnApp(t *testing.T) {
	t.Parallel()
	e, c := unsignedBefore(t)
	c.Published = unsigned
	p := joined(t, e, c, "default", "main", "")
	verdicts, err := p.Admit(t.Context(), c)
	r := events.Result{Type: events.ResultFailed, App: "docs"}
	p.Describe(&r, state.Check{App: "docs", Verdicts: verdicts})
	if err == nil || len(verdicts) != 2 || r.Verification == nil || r.Verification.Verified || r.Verification.ID != unsigned {
		t.Errorf("%v, verdicts %+v; the result has %+v", err, verdicts, r.Verification)
	}
}

func TestLastCommitsStayWithTheirWatches(t *testing.T) {
	t.Parallel()
	fields := map[string]string{"signatures:default": "1 1", "signatures:refs/heads/main": "1 1", "signatures:refs/heads/other": "1 1", "head:refs/heads/main": "1"}
	for i := range 1005 {
		fields[fmt.Sprintf("signatures:refs/tags/v%04d", i)] = fmt.Sprintf("1 %d", i)
	}
	rule := watch.With(Options{NoRewind: true})
	for name, tc := range map[string]struct {
		watches []watch.Watch
		want    []string
		n       int
	}{
		"the oldest tags of a pattern": {[]watch.Watch{{Options: rule}, {Ref: selector(t, "main"), Options: rule}, {Ref: selector(t, "refs/tags/*"), Options: rule}, {Ref: selector(t, "other")}},
			[]string{"refs/heads/other", "refs/tags/v0000", "refs/tags/v0001", "refs/tags/v0002", "refs/tags/v0003", "refs/tags/v0004"}, 6},
		"all tags, and one that is named": {[]watch.Watch{{Ref: selector(t, "refs/heads/*"), Options: rule}, {Ref: selector(t, "refs/tags/v0000"), Options: rule}}, nil, 1005},
		"all":                             {nil, nil, 1008},
	} {
		p := New(nil).Join(ext.Sync{Watches: tc.watches, Known: state.RepoOf(fields)}).(*part)
		got := p.Outdated()
		slices.Sort(got)
		if len(got) != tc.n || tc.want != nil && !slices.Equal(got, tc.want) {
			t.Errorf("%s: %d are outdated, want %d: %q", name, len(got), tc.n, got[:min(len(got), 10)])
		}
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for file, text := range map[string]string{"team/openpgpKeys": "\x99binary\r\n", "other/revokedKeys": "x"} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, file)), 0o700))
		must(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
	}
	store := credential.NewStore(dir, func(string) string { return "" })
	if keys, err := readKeys(store, "team"); err != nil || keys.OpenPGPKeys != "\x99binary\r\n" {
		t.Errorf("got %+v, %v", keys, err)
	}
	for _, name := range []string{"other", "gone", "../team"} {
		_, err := readKeys(store, name)
		testenv.MustFail(t, err, events.ClassConfig, events.Permanent)
	}
}
