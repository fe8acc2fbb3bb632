package wire

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/git"
	"lockstep/internal/git/object"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

const widgets = "acme/widgets"

// startGit starts a server with the repository acme/widgets.
func startGit(t *testing.T, opts ...gitserver.Option) (server *gitserver.Server, head string) {
	t.Helper()
	server = testenv.Must(gitserver.Start(t.TempDir(), opts...))(t)
	t.Cleanup(server.Close)
	return server, testenv.Must(server.Create(t.Context(), widgets, map[string]string{"a": "1"}))(t)
}

func newNetwork(t *testing.T) *Network {
	t.Helper()
	n := testenv.Must(NewNetwork(Config{}))(t)
	t.Cleanup(n.Close)
	return n
}

func dial(t *testing.T, n *Network, url string, auth Auth) *Session {
	t.Helper()
	r := testenv.Must(n.Dial(url, auth, false, Limits{MaxPackBytes: 1 << 20, Timeout: time.Minute}))(t)
	t.Cleanup(r.Close)
	return r
}

// TestBothProtocols resolves and fetches refs over HTTP and SSH, from a server that speaks protocol 2 and one that does not.
func TestBothProtocols(t *testing.T) {
	server, head := startGit(t)
	testenv.Must(0, server.Tag(t.Context(), widgets, "v1", head))(t)
	tag := testenv.Must(server.Git(t.Context(), widgets, "", "rev-parse", "refs/tags/v1"))(t)
	testenv.Must(0, server.SetRef(t.Context(), widgets, "refs/heads/mainly", head))(t)
	ssh := testenv.Must(server.StartSSH())(t)
	t.Cleanup(ssh.Close)
	for name, tc := range map[string]struct {
		url  string
		auth Auth
		old  bool
	}{
		"2 over HTTP": {url: server.URL(widgets)},
		"0 over HTTP": {url: server.URL(widgets), old: true},
		"2 over SSH":  {url: ssh.URL(widgets), auth: Auth{SSHKey: ssh.ClientKey, KnownHosts: ssh.KnownHosts()}},
		"0 over SSH":  {url: ssh.URL(widgets), auth: Auth{SSHKey: ssh.ClientKey, KnownHosts: ssh.KnownHosts()}, old: true},
	} {
		t.Run(name, func(t *testing.T) {
			server.IgnoreVersion(tc.old)
			n := newNetwork(t)
			for _, want := range []struct {
				ref string
				tip Tip
			}{
				{"", Tip{IsDefault: true, Want: object.ParseID(head), Commit: object.ParseID(head)}},
				{"refs/heads/main", Tip{IsDefault: true, Want: object.ParseID(head), Commit: object.ParseID(head)}},
				{"refs/heads/mainly", Tip{Want: object.ParseID(head), Commit: object.ParseID(head)}},
				{"refs/tags/v1", Tip{Want: object.ParseID(tag), Commit: object.ParseID(head)}},
			} {
				sessions := len(ssh.Commands())
				r := dial(t, n, tc.url, tc.auth)
				testenv.Must(0, r.List(t.Context(), want.ref))(t)
				got := testenv.Must(r.Resolve(want.ref))(t)
				if (r.offered != nil) == tc.old {
					t.Fatalf("the wrong protocol: %+v", r.offered)
				}
				if got.Ref == "" || got.IsDefault != want.tip.IsDefault || got.Want != want.tip.Want || got.Commit != want.tip.Commit {
					t.Errorf("%s: got %+v, want %+v", want.ref, got, want.tip)
				}
				var pack bytes.Buffer
				shallow := testenv.Must(r.Fetch(t.Context(), FetchRequest{Tip: got.Want, Depth: 1}, &pack))(t)
				if len(shallow) != 1 || shallow[0].String() != head || !bytes.HasPrefix(pack.Bytes(), []byte("PACK")) {
					t.Errorf("%s: shallow %v, pack of %d bytes", want.ref, shallow, pack.Len())
				}
				if n := len(ssh.Commands()) - sessions; tc.auth.SSHKey != "" && n != 1 {
					t.Errorf("%d connections", n)
				}
			}
			r := dial(t, n, tc.url, tc.auth)
			testenv.Must(0, r.List(t.Context(), "refs/heads/none"))(t)
			_, err := r.Resolve("refs/heads/none")
			testenv.MustFail(t, err, events.ClassNoRef, events.Permanent)
		})
	}
}

// TestShallowAndThinFetch fetches the second commit of three to a store that has the first.
func TestShallowAndThinFetch(t *testing.T) {
	server, first := startGit(t)
	second := testenv.Must(server.Commit(t.Context(), widgets, gitserver.Main, gitserver.Edit{Write: map[string]string{"a": "2"}}))(t)
	for _, old := range []bool{false, true} {
		server.IgnoreVersion(old)
		r := dial(t, newNetwork(t), server.URL(widgets), Auth{})
		testenv.Must(0, r.List(t.Context(), "HEAD"))(t)
		ids := []object.ID{object.ParseID(first)}
		var pack bytes.Buffer
		shallow := testenv.Must(r.Fetch(t.Context(), FetchRequest{Tip: object.ParseID(second), Depth: 1, Haves: ids}, &pack))(t)
		if len(shallow) != 1 || shallow[0].String() != second {
			t.Errorf("old %v: shallow %v", old, shallow)
		}
		if objects := pack.Bytes()[11]; objects != 3 { // commit, tree, blob
			t.Errorf("old %v: %d objects", old, objects)
		}
		shallow = testenv.Must(r.Fetch(t.Context(), FetchRequest{Tip: object.ParseID(second), Haves: ids, Shallow: shallow, Depth: git.FullDepth}, io.Discard))(t)
		if len(shallow) != 0 {
			t.Errorf("old %v: shallow %v after a full fetch", old, shallow)
		}
	}
}

// TestDefaultBranches compares the protocols where HEAD does not name a branch that exists.
func TestDefaultBranches(t *testing.T) {
	for name, tc := range map[string]struct {
		arrange func(s *gitserver.Server, head string) error
		want    string
		class   events.Class
	}{
		"another branch": {func(s *gitserver.Server, head string) error { return s.SetHead(widgets, "none") }, "refs/heads/main", ""},
		"detached":       {func(s *gitserver.Server, head string) error { return s.SetRef(t.Context(), widgets, "HEAD", head) }, "refs/heads/main", ""},
		"empty": {func(s *gitserver.Server, head string) error {
			return s.DeleteRef(t.Context(), widgets, "refs/heads/main")
		}, "", events.ClassNoRef},
		"hidden others": {hide("refs/heads/other"), "refs/heads/main", ""},
		"all refs of HEAD": {func(s *gitserver.Server, head string) error {
			return s.SetRef(t.Context(), widgets, "refs/heads/main-2", head)
		}, "refs/heads/main", ""},
	} {
		t.Run(name, func(t *testing.T) {
			server, head := startGit(t)
			testenv.Must(0, tc.arrange(server, head))(t)
			for _, old := range []bool{false, true} {
				server.IgnoreVersion(old)
				r := dial(t, newNetwork(t), server.URL(widgets), Auth{})
				err := r.List(t.Context(), "HEAD")
				var tip Tip
				if err == nil {
					tip, err = r.Resolve("")
				}
				if tc.class != "" {
					testenv.MustFail(t, err, tc.class, events.Permanent)
					continue
				}
				if testenv.Must(tip, err)(t); tip.Ref != tc.want || !tip.IsDefault {
					t.Errorf("old %v: got %+v", old, tip)
				}
			}
		})
	}
}

func hide(ref string) func(s *gitserver.Server, head string) error {
	return func(s *gitserver.Server, _ string) error {
		_, err := s.Git(context.Background(), widgets, "", "config", "uploadpack.hideRefs", ref)
		return err
	}
}

// TestOneRefOfMany limits the bytes of listing one ref of 100,000, including headers.
func TestOneRefOfMany(t *testing.T) {
	server, head := startGit(t)
	testenv.Must(0, server.ManyRefs(widgets, head, 100_000))(t)
	meter := testenv.Must(server.StartMeter())(t)
	t.Cleanup(meter.Close)
	n := newNetwork(t)
	for i, ref := range []string{"refs/heads/many/050000", "refs/heads/main", "HEAD"} {
		r := dial(t, n, meter.URL(widgets), Auth{})
		testenv.Must(0, r.List(t.Context(), ref))(t)
		if used := meter.Take(); used > 2000 {
			t.Errorf("look %d at %s: %d bytes", i+1, ref, used)
		} else {
			t.Logf("look %d at %s: %d bytes", i+1, ref, used)
		}
	}
	testenv.Must(gitserver.Git(t.Context(), t.TempDir(), "", "ls-remote", meter.URL(widgets), "refs/heads/many/050000"))(t)
	t.Logf("git ls-remote: %d bytes", meter.Take())
	if s := server.Stats(widgets); s.InfoRefs != 4 || s.Capabilities != 2 {
		t.Errorf("%+v", s)
	}
}

// TestCapabilitiesAreRemembered counts requests, also after the server has changed.
func TestCapabilitiesAreRemembered(t *testing.T) {
	server, head := startGit(t)
	n := newNetwork(t)
	look := func(wantErr events.Class) {
		t.Helper()
		r := dial(t, n, server.URL(widgets), Auth{})
		err := r.List(t.Context(), "HEAD")
		if events.ClassOf(err) != wantErr && (err != nil || wantErr != "") {
			t.Fatalf("got %v", err)
		}
		if err == nil && testenv.Must(r.Resolve(""))(t).Commit.String() != head {
			t.Error("another commit")
		}
	}
	requests := func() (capabilities, lists int) {
		s := server.Stats(widgets)
		return s.Capabilities, s.InfoRefs
	}
	expect := func(what string, capabilities, lists int) {
		t.Helper()
		if c, l := requests(); c != capabilities || l != lists {
			t.Errorf("%s: %d requests for capabilities and %d for refs, want %d and %d", what, c, l, capabilities, lists)
		}
	}
	look("")
	expect("first", 1, 1)
	look("")
	expect("remembered", 1, 2)
	server.IgnoreVersion(true)
	look("") // a failed request, then info/refs
	expect("downgraded", 1, 4)
	look("")
	expect("forgotten", 1, 5)
	server.IgnoreVersion(false)
	look("")
	expect("upgraded", 2, 6)
	server.Answer(widgets, http.StatusServiceUnavailable)
	look(events.ClassServer)
	expect("failing", 2, 7)
	server.Answer(widgets, 0)
	look("")
	expect("again", 3, 8)
	server.Answer(widgets, http.StatusNotFound)
	look(events.ClassNotFound)
	expect("not found", 4, 9)
}

func TestRemotesAreBounded(t *testing.T) {
	var m remotes
	for i := range maxRemotes + 10 {
		m.remember("https://example.org/"+strings.Repeat("x", i%100)+string(rune('a'+i/100)), &protocol2{shallow: true})
	}
	if len(m.offered) > maxRemotes {
		t.Errorf("%d remotes", len(m.offered))
	}
}

// TestHostileProtocol2 answers with invalid messages.
func TestHostileProtocol2(t *testing.T) {
	const id = "1111111111111111111111111111111111111111"
	line := func(s string) string { w := &pktWriter{}; w.Text("%s", s); return w.String() }
	hello := func(lines ...string) string {
		text := line("# service=git-upload-pack") + "0000" + line("version 2")
		for _, l := range lines {
			text += line(l)
		}
		return text + "0000"
	}
	good := hello("agent=git/2.39", "ls-refs=unborn", "fetch=shallow", "object-format=sha1")
	refs := line(id+" HEAD symref-target:refs/heads/main") + line(id+" refs/heads/main") + "0000"
	for name, tc := range map[string]struct {
		hello, refs, pack string
		class             events.Class
		disposition       events.Disposition
	}{
		"endless capabilities":       {hello: hello(strings.Split(strings.Repeat("x"+strings.Repeat("y", 1000)+",", 100), ",")...)},
		"no command":                 {hello: hello("agent=git/2.39")},
		"another format":             {hello: hello("ls-refs", "fetch", "object-format=sha512"), class: events.ClassConfig, disposition: events.Permanent},
		"another in protocol 0":      {hello: line("# service=git-upload-pack") + "0000" + line(strings.Repeat("1", 128)+" HEAD\x00side-band-64k object-format=sha512") + "0000", class: events.ClassConfig, disposition: events.Permanent},
		"IDs of another format":      {refs: line(strings.Repeat("1", 64)+" HEAD") + "0000"},
		"a length of three":          {refs: "0003"},
		"a length of fff1":           {refs: "fff1" + strings.Repeat("x", 70000)},
		"no length":                  {refs: "zzzz"},
		"a cut line":                 {refs: "0040" + id},
		"no end":                     {refs: line(id + " HEAD")},
		"a section":                  {refs: "0001"},
		"no name":                    {refs: line(id) + "0000"},
		"a bad peeled ID":            {refs: line(id+" refs/tags/v1 peeled:xyz") + "0000"},
		"a web page":                 {refs: "<html>"},
		"an ERR line":                {refs: line("ERR access denied"), class: events.ClassAuth, disposition: events.Permanent},
		"too many refs":              {refs: strings.Repeat(line(id+" refs/heads/"+strings.Repeat("a", 60_000)), maxAdvert/60_000+2) + "0000", class: events.ClassQuota, disposition: events.Permanent},
		"no pack":                    {pack: "0000"},
		"an unknown section":         {pack: line("wanted-refs") + line(id+" refs/heads/main") + "0000"},
		"a bad shallow ID":           {pack: line("shallow-info") + line("shallow xyz") + "0001" + line("packfile") + "0000"},
		"an ERR line for the pack":   {pack: line("ERR upload-pack: not our ref " + id)},
		"an ERR line in the pack":    {pack: line("packfile") + line("ERR access denied"), class: events.ClassAuth, disposition: events.Permanent},
		"endless shallow":            {pack: line("shallow-info") + strings.Repeat(line("shallow "+id), maxPrologue/50), class: events.ClassQuota, disposition: events.Permanent},
		"a band that is not":         {pack: line("packfile") + "000a\x07hello0000"},
		"an error on side-band 3":    {pack: line("packfile") + "0010\x03not today0000"},
		"endless empty sections":     {pack: strings.Repeat("0001", maxPrologue/4+1), class: events.ClassQuota, disposition: events.Permanent},
		"a pack after the flush":     {pack: "0000" + line("packfile") + "0000"},
		"a protocol 0 answer":        {pack: "0008NAK\n0009\x01PACK0000"},
		"a cut pack":                 {pack: line("packfile") + "0100\x01PACK"},
		"all bytes at once, garbage": {hello: strings.Repeat("f", 1<<16)},
	} {
		t.Run(name, func(t *testing.T) {
			r := dial(t, newNetwork(t), "https://git.test/acme/widgets", Auth{BearerToken: secret})
			r.wire.maxPack = 1 << 30
			r.wire.next = roundTripper(func(req *http.Request) (*http.Response, error) {
				answer := or(tc.hello, good)
				if req.Method == http.MethodPost {
					request := testenv.Must(io.ReadAll(req.Body))(t)
					answer = or(tc.refs, refs)
					if bytes.Contains(request, []byte("command=fetch")) {
						answer = tc.pack
					}
				}
				return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(answer)), Request: req}, nil
			})
			err := r.List(t.Context(), "HEAD")
			if tc.pack != "" {
				testenv.Must(0, err)(t)
				_, err = r.Fetch(t.Context(), FetchRequest{Tip: object.ParseID(id), Depth: 1}, io.Discard)
			}
			if tc.class == "" {
				tc.class, tc.disposition = events.ClassServer, events.Retryable
			}
			testenv.MustFail(t, err, tc.class, tc.disposition)
		})
	}
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
