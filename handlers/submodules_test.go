package handlers_test

import (
	"context"
	"encoding/base64"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/ext/submodules"
	"lockstep/internal/git/wire"
	"lockstep/internal/gitserver"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// withSubmodule makes acme/widgets with the submodule sub of acme/lib at a URL.
func (w *world) withSubmodule(url string) {
	w.t.Helper()
	ctx := context.Background()
	lib, err := w.git.Create(ctx, "acme/lib", map[string]string{"l": "library"})
	must(w.t, err)
	must(w.t, w.git.CreateEmpty(ctx, "acme/widgets"))
	_, err = w.git.Commit(ctx, "acme/widgets", gitserver.Main, gitserver.Edit{
		Write:     map[string]string{"a": "1", ".gitmodules": "[submodule \"sub\"]\n\tpath = sub\n\turl = " + url + "\n"},
		Submodule: map[string]string{"sub": lib},
	})
	must(w.t, err)
}

func (w *world) hasSubmodule() bool {
	_, err := os.Stat(filepath.Join(w.root, "acme/widgets/sub/l"))
	return err == nil
}

// TestTheStrictestWatchDecidesAboutSubmodules adds and removes watches of one ref, and polls.
func TestTheStrictestWatchDecidesAboutSubmodules(t *testing.T) {
	w := newWorld(t)
	w.withSubmodule("../lib.git")
	url := w.git.URL("acme/widgets")
	want := func(entry, requests string, has bool) {
		t.Helper()
		if got := requested(w.due(entry)); got != requests {
			t.Errorf("%s: requested %q, want %q", entry, got, requests)
		}
		if w.hasSubmodule() != has {
			t.Errorf("%s: the tree has the submodule: %v", entry, !has)
		}
	}
	w.watch("plain", "")
	want("a-0", "pushed plain", false)
	best := w.watchAs(watch.Watch{App: "best", URL: url, Options: watch.With(submodules.Options{Mode: events.SubmodulesBestEffort})}, "")
	want("b-0", "pushed best, pushed plain", true)
	want("c-0", "", true)
	strict := w.watchAs(watch.Watch{App: "strict", URL: url, Options: watch.With(submodules.Options{Mode: events.SubmodulesRequired})}, gitserver.Main)
	want("d-0", "pushed best, pushed plain, pushed strict refs/heads/main", true)
	w.mustHandle("e-0", events.Change{URL: url}) // by no watch
	want("f-0", "", true)

	must(t, w.git.Delete("acme/lib"))
	lib, err := w.git.Create(context.Background(), "acme/lib", map[string]string{"l": "another"})
	must(t, err)
	_, err = w.git.Commit(context.Background(), "acme/widgets", gitserver.Main, gitserver.Edit{Submodule: map[string]string{"sub": strings.Repeat("1", len(lib))}})
	must(t, err)
	if _, err := w.handle("g-0", events.Change{URL: url, App: "best", Watched: true}); events.ClassOf(err) != events.ClassNotFound {
		t.Errorf("%v, want %s for all watches of the ref", err, events.ClassNotFound)
	}
	w.unwatch(strict)
	result := w.mustHandle("h-0", events.Change{URL: url, App: "best", Watched: true})
	if len(result.Missing) != 1 || result.Missing[0].Path != "sub" || result.Missing[0].Class != events.ClassNotFound || result.Missing[0].Error == "" {
		t.Errorf("missing %+v", result.Missing)
	}
	want("i-0", "pushed plain", false) // a poll does not try again what does not exist
	want("j-0", "", false)
	w.git.Answer("acme/lib", http.StatusInternalServerError)
	w.push(map[string]string{"a": "2"})
	want("k-0", "pushed best, pushed plain", false)
	want("l-0", "pushed best, pushed plain", false) // but what may only be unavailable
	w.git.Answer("acme/lib", 0)
	_, err = w.git.Commit(context.Background(), "acme/widgets", gitserver.Main, gitserver.Edit{Submodule: map[string]string{"sub": lib}})
	must(t, err)
	want("m-0", "pushed best, pushed plain", true)
	w.unwatch(best)
	want("n-0", "pushed plain", false)
}

// TestNoTokenFollowsASubmodule has a hostile .gitmodules, or the server of a submodule, try to get the credential of a repository.
func TestNoTokenFollowsASubmodule(t *testing.T) {
	const token, libsToken = "s3cret-token", "l1bs-token"
	basic := base64.StdEncoding.EncodeToString([]byte("bot:" + token))
	libsBasic := base64.StdEncoding.EncodeToString([]byte("bot:" + libsToken))
	for name, tc := range map[string]struct {
		url      string // in .gitmodules; THIEF, OWN and HOST are URLs
		redirect string // where the thief redirects to
		hosts    []string
		class    events.Class
		asked    bool // the thief is asked
		nested   bool // the URL is in the .gitmodules of a submodule
		has      bool
	}{
		"its own prefix":                    {url: "../lib.git", has: true},
		"another port":                      {url: "THIEF/acme/lib.git", class: events.ClassNotFound, asked: true},
		"another port, nested":              {url: "THIEF/acme/lib.git", class: events.ClassNotFound, asked: true, nested: true},
		"another port, of no listed host":   {url: "THIEF/acme/lib.git", hosts: []string{}, class: events.ClassConfig},
		"the host by another name":          {url: "LOCALHOST/acme/lib.git", class: events.ClassNotFound, asked: true},
		"a relative URL to another host":    {url: "../../../LOCAL/acme/lib.git", class: events.ClassNotFound, asked: true},
		"a path outside of the prefix":      {url: "../../other/repo.git", class: events.ClassAuth},
		"a path out of it, encoded":         {url: "HOST/acme/%2e%2e/other/repo.git", class: events.ClassConfig},
		"a user in the URL":                 {url: "NAMED/acme/lib.git", class: events.ClassNotFound, asked: true},
		"SSH":                               {url: "ssh://git@127.0.0.1/acme/lib.git", class: events.ClassAuth},
		"a redirect from another to itself": {url: "THIEF/acme/lib.git", redirect: "HOST/other/repo.git", class: events.ClassAuth, asked: true},
		"a redirect to a private network":   {url: "THIEF/acme/lib.git", redirect: "http://127.0.0.2:1/x.git", class: events.ClassConfig, asked: true},

		"that of submodules":                        {url: "../../libs/lib.git", has: true},
		"that of submodules, at another port":       {url: "THIEF/libs/lib.git", class: events.ClassNotFound, asked: true},
		"that of submodules, outside of its prefix": {url: "../../libs-evil/repo.git", class: events.ClassAuth},
		"that of submodules, redirected to":         {url: "THIEF/libs/lib.git", redirect: "HOST/libs/lib.git", class: events.ClassAuth, asked: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			ctx := context.Background()
			var places *strings.Replacer
			host := newThief(t, func(res http.ResponseWriter, req *http.Request) {
				if tc.redirect != "" {
					http.Redirect(res, req, places.Replace(tc.redirect)+"/info/refs?service=git-upload-pack", http.StatusFound)
					return
				}
				http.NotFound(res, req)
			})
			own := w.git.URL("acme/widgets")
			places = strings.NewReplacer("THIEF", host.URL, "NAMED", strings.Replace(host.URL, "http://", "http://bot@", 1), "LOCALHOST", strings.Replace(host.URL, "127.0.0.1", "localhost", 1),
				"LOCAL", strings.TrimPrefix(strings.Replace(host.URL, "127.0.0.1", "localhost", 1), "http://"),
				"OWN", own, "HOST", strings.TrimSuffix(own, "/acme/widgets.git"))
			if tc.hosts == nil {
				tc.hosts = []string{"127.0.0.1", "localhost"}
			}
			v, err := volume.OpenVolume(w.root, volume.Config{Net: wire.Config{Hosts: tc.hosts}})
			must(t, err)
			t.Cleanup(v.Close)
			w.env["LOCKSTEP_CREDENTIAL_BOT_USERNAME"] = "bot"
			w.env["LOCKSTEP_CREDENTIAL_BOT_PASSWORD"] = token
			w.env["LOCKSTEP_CREDENTIAL_BOT_SSH_KEY"] = "never used"
			w.env["LOCKSTEP_CREDENTIAL_BOT_URLS"] = strings.TrimSuffix(own, "widgets.git")
			w.handlers.Volume = v
			w.env["LOCKSTEP_CREDENTIAL_LIBS_USERNAME"] = "bot"
			w.env["LOCKSTEP_CREDENTIAL_LIBS_PASSWORD"] = libsToken
			w.env["LOCKSTEP_CREDENTIAL_LIBS_URLS"] = strings.TrimSuffix(own, "acme/widgets.git") + "libs/"
			for _, repo := range []string{"acme/widgets", "acme/lib", "acme/mid", "other/repo", "acme-evil/repo", "libs-evil/repo"} {
				w.git.RequireAuth(repo, "bot", token)
			}
			w.git.RequireAuth("libs/lib", "bot", libsToken)
			url := places.Replace(tc.url)
			w.withSubmodule(url)
			must(t, w.git.Alias("libs/lib", "acme/lib"))
			if tc.nested {
				mid, err := w.git.Create(ctx, "acme/mid", map[string]string{".gitmodules": "[submodule \"sub\"]\n\tpath = sub\n\turl = " + url + "\n"})
				must(t, err)
				mid, err = w.git.Commit(ctx, "acme/mid", gitserver.Main, gitserver.Edit{Submodule: map[string]string{"sub": mid}})
				must(t, err)
				_, err = w.git.Commit(ctx, "acme/widgets", gitserver.Main, gitserver.Edit{
					Write:     map[string]string{".gitmodules": "[submodule \"mid\"]\n\tpath = mid\n\turl = ../mid.git\n"},
					Submodule: map[string]string{"mid": mid}, Delete: []string{"sub"},
				})
				must(t, err)
			}
			w.watchAs(watch.Watch{App: "build", URL: own, Credential: "bot", Options: watch.With(submodules.Options{Mode: events.SubmodulesRequired, Credentials: []string{"libs"}})}, "")
			result, err := w.handle("1-0", events.Change{URL: own, Credential: "bot", App: "build", Watched: true})
			if (err == nil) != (tc.class == "") || err != nil && events.ClassOf(err) != tc.class {
				t.Errorf("%v, %v, want class %q", result, err, tc.class)
			}
			if w.hasSubmodule() != tc.has {
				t.Errorf("the tree has the submodule: %v", !tc.has)
			}
			received := strings.Join(host.all(), "\n")
			if strings.Contains(received, token) || strings.Contains(received, basic) || strings.Contains(received, libsToken) || strings.Contains(received, libsBasic) || strings.Contains(received, "Authorization") {
				t.Errorf("the credential left its prefix: %s", received)
			}
			if tc.asked != (received != "") {
				t.Errorf("the other host received %q", received)
			}
			for repo, others := range map[string]string{"acme/widgets": libsToken, "acme/lib": libsToken, "acme/mid": libsToken, "libs/lib": token} {
				if slices.Contains(w.git.TokensSeen(repo), others) {
					t.Errorf("the credential of another prefix was sent to %s", repo)
				}
			}
			for _, repo := range []string{"other/repo", "acme-evil/repo", "libs-evil/repo"} {
				for _, seen := range w.git.TokensSeen(repo) {
					if seen != "" {
						t.Errorf("the credential was sent to %s", repo)
					}
				}
			}
			if err != nil && (strings.Contains(err.Error(), token) || strings.Contains(err.Error(), libsToken)) {
				t.Errorf("the token is in %v", err)
			}
		})
	}
}

// TestARefusedSubmoduleCostsNoToken has the remote of a submodule refuse the token of the repository.
func TestARefusedSubmoduleCostsNoToken(t *testing.T) {
	w := newWorld(t)
	w.withSubmodule("../lib.git")
	w.git.RequireAuth("acme/widgets", githubUser, "good")
	w.git.RequireAuth("acme/lib", "bot", "another")
	issued := w.githubApp(strings.TrimSuffix(w.git.URL("acme/widgets"), "/widgets.git"), "good", "never needed")
	_, err := w.handle("1-0", events.Change{URL: w.git.URL("acme/widgets"), Credential: "app", Submodules: events.SubmodulesRequired})
	if events.ClassOf(err) != events.ClassAuth || events.DispositionOf(err) != events.Permanent {
		t.Errorf("%v", err)
	}
	r := w.mustHandle("2-0", events.Change{URL: w.git.URL("acme/widgets"), Credential: "app", Submodules: events.SubmodulesBestEffort})
	if n := issued.Load(); len(r.Missing) != 1 || n != 1 {
		t.Errorf("%+v after %d tokens, want one", r, n)
	}
}
