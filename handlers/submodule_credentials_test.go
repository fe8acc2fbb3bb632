package handlers_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/ext/lfs"
	"lockstep/internal/ext/submodules"
	"lockstep/internal/git/wire"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
	"lockstep/internal/volume"
	"lockstep/internal/watch"
)

// credential sets the variables of a credential with a password for prefixes below the Git server.
func (w *world) credential(name, password string, prefixes ...string) {
	base := strings.TrimSuffix(w.git.URL("x"), "x.git")
	for i := range prefixes {
		prefixes[i] = base + prefixes[i]
	}
	variable := "LOCKSTEP_CREDENTIAL_" + strings.ToUpper(name)
	w.env[variable+"_USERNAME"], w.env[variable+"_PASSWORD"], w.env[variable+"_URLS"] = "bot", password, strings.Join(prefixes, " ")
}

// withPrivate makes acme/widgets with a submodule for each private repository, which needs a password.
func (w *world) withPrivate(passwords map[string]string) {
	w.t.Helper()
	ctx := context.Background()
	edit := gitserver.Edit{Write: map[string]string{".gitmodules": ""}, Submodule: map[string]string{}}
	for repo, password := range passwords {
		commit := testenv.Must(w.git.Create(ctx, repo, map[string]string{"l": repo}))(w.t)
		w.git.RequireAuth(repo, "bot", password)
		edit.Write[".gitmodules"] += "[submodule \"" + repo + "\"]\n\tpath = " + repo + "\n\turl = ../../" + repo + ".git\n"
		edit.Submodule[repo] = commit
	}
	must(w.t, w.git.CreateEmpty(ctx, "acme/widgets"))
	testenv.Must(w.git.Commit(ctx, "acme/widgets", gitserver.Main, edit))(w.t)
}

func missingPaths(r events.Result) (paths []string) {
	for _, m := range r.Missing {
		paths = append(paths, m.Path)
	}
	return paths
}

// TestSubmodulesHaveCredentialsOfTheirOwn has submodules that each need another credential.
func TestSubmodulesHaveCredentialsOfTheirOwn(t *testing.T) {
	w := newWorld(t)
	w.withPrivate(map[string]string{"acme/own": "own", "libs/a": "wide", "libs/deep/b": "narrow", "libs/deep-c": "wide", "other/d": "none"})
	w.git.RequireAuth("acme/widgets", "bot", "own")
	requests := w.limitHosts()
	w.credential("own", "own", "acme", "libs/deep/b.git") // a longer prefix of the change's own credential does not count
	w.credential("wide", "wide", "libs/", "nowhere")
	w.credential("narrow", "narrow", "libs/deep/")
	w.credential("unused", "unused", "unused")
	w.watchAs(watch.Watch{
		App: "build", URL: w.git.URL("acme/widgets"), Credential: "own", Options: watch.With(submodules.Options{
			Mode: events.SubmodulesBestEffort, Credentials: []string{"unused", "wide", "narrow"},
		}),
	}, "")
	r := w.mustHandle("1-0", events.Change{URL: w.git.URL("acme/widgets"), Credential: "own", App: "build", Watched: true})
	if got := missingPaths(r); !slices.Equal(got, []string{"other/d"}) {
		t.Fatalf("missing %+v", r.Missing)
	}
	if m := r.Missing[0]; m.Class != events.ClassAuth || !strings.Contains(m.Error, "--submodule-credential") {
		t.Errorf("%+v, want it to say how to name a credential", m)
	}
	for _, path := range []string{"acme/own/l", "libs/a/l", "libs/deep/b/l", "libs/deep-c/l"} {
		if w.read("acme/widgets/"+path) != strings.TrimSuffix(path, "/l") {
			t.Errorf("%s is %q", path, w.read("acme/widgets/"+path))
		}
	}
	used := requests.credentials(w)
	if len(used) != 4 || !used["own"] || !used["wide"] || !used["narrow"] || !used[""] {
		t.Errorf("requests with the credentials %v, want each to count for its own", used)
	}
	// Any sync of the ref has the same tree.
	w.push(map[string]string{"a": "2"})
	if r := w.mustHandle("2-0", events.Change{URL: w.git.URL("acme/widgets"), Credential: "own", App: "another"}); !slices.Equal(missingPaths(r), []string{"other/d"}) {
		t.Errorf("for another app: missing %+v", r.Missing)
	}
}

// TestUnusableSubmoduleCredential has watches that name a credential without URL prefixes, or none at all.
func TestUnusableSubmoduleCredential(t *testing.T) {
	w := newWorld(t)
	w.withPrivate(map[string]string{"libs/a": "wide"})
	url := w.git.URL("acme/widgets")
	w.credential("wide", "wide", "libs/")
	w.env["LOCKSTEP_CREDENTIAL_NOURLS_PASSWORD"] = "s3cret"
	w.watchAs(watch.Watch{App: "good", URL: url, Options: watch.With(submodules.Options{Mode: events.SubmodulesRequired, Credentials: []string{"wide"}})}, "")
	good := events.Change{URL: url, Repo: w.repo(), App: "good", Watched: true}
	w.mustHandle("1-0", good)
	for i, tc := range []struct{ name, says string }{
		{"nourls", `submodules: credential "nourls" has no URL prefixes, so it is never sent; add them to`},
		{"nobody", `submodules: unknown credential "nobody"; add`},
	} {
		w.watchAs(watch.Watch{App: "bad", URL: url, Options: watch.With(submodules.Options{Mode: events.SubmodulesBestEffort, Credentials: []string{"wide", tc.name}})}, "")
		_, err := w.handle("2-0", events.Change{URL: url, App: "bad", Watched: true})
		if events.ClassOf(err) != events.ClassConfig || events.DispositionOf(err) != events.Permanent || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%d: %v", i, err)
		}
		w.push(map[string]string{"a": tc.name})
		if r := w.mustHandle("3-0", good); len(r.Missing) > 0 {
			t.Errorf("%d: the other app lacks %+v", i, r.Missing)
		}
		w.mustHandle("4-0", events.Change{Type: events.ChangeDue, Repo: good.Repo})
		if got := requested(w.next); got != "pushed bad" {
			t.Errorf("%d: a poll requests %q, want the sync that reports it", i, got)
		}
	}
}

// TestPollNoticesANewSubmoduleCredential adds credentials for a submodule that is missing.
func TestPollNoticesANewSubmoduleCredential(t *testing.T) {
	w := newWorld(t)
	w.withPrivate(map[string]string{"libs/a": "right"})
	url := w.git.URL("acme/widgets")
	w.credential("first", "wrong", "elsewhere")
	w.credential("second", "right", "libs")
	parts := submodules.Options{Mode: events.SubmodulesBestEffort}
	of := watch.Watch{App: "build", URL: url, Options: watch.With(parts)}
	change := events.Change{URL: url, App: "build", Watched: true}
	step := func(entry, want string, missing int) {
		t.Helper()
		if got := requested(w.due(entry)); got != want {
			t.Errorf("%s: requested %q, want %q", entry, got, want)
		}
		if got := w.mustHandle(entry+"1", change); len(got.Missing) != missing {
			t.Errorf("%s: missing %+v", entry, got.Missing)
		}
		if got := requested(w.due(entry + "2")); got != "" {
			t.Errorf("%s: then requested %q", entry, got)
		}
	}
	w.watchAs(of, "")
	step("1-0", "pushed build", 1)
	parts.Credentials = []string{"first"}
	of.Options = watch.With(parts)
	w.watchAs(of, "")
	step("2-0", "", 1) // covers nothing
	w.credential("first", "wrong", "libs")
	step("3-0", "pushed build", 1) // is refused
	parts.Credentials = []string{"first", "second"}
	of.Options = watch.With(parts)
	w.watchAs(of, "")
	step("4-0", "", 1) // of equal prefixes the first counts
	w.credential("second", "right", "libs/a.git")
	step("5-0", "pushed build", 0)
}

// TestRevokedTokenOfASubmoduleIsReplaced has the remote of a submodule refuse the first token.
func TestRevokedTokenOfASubmoduleIsReplaced(t *testing.T) {
	w := newWorld(t)
	w.withPrivate(map[string]string{"libs/a": "fresh"})
	w.git.RequireAuth("libs/a", githubUser, "fresh")
	url := w.git.URL("acme/widgets")
	issued := w.githubApp(w.git.URL("libs/a"), "revoked", "fresh", "never needed")
	w.watchAs(watch.Watch{App: "build", URL: url, Options: watch.With(submodules.Options{Mode: events.SubmodulesBestEffort, Credentials: []string{"app"}})}, "")
	if r := w.mustHandle("1-0", events.Change{URL: url, App: "build", Watched: true}); len(r.Missing) > 0 {
		t.Errorf("missing %+v", r.Missing)
	}
	if n := issued.Load(); n != 2 {
		t.Errorf("%d tokens were issued, want 2", n)
	}
}

// TestNoTokenFollowsTheLFSFilesOfASubmodule has the .lfsconfig of a submodule, or its LFS server, try to get credentials.
func TestNoTokenFollowsTheLFSFilesOfASubmodule(t *testing.T) {
	const token, libsToken = "s3cret-token", "l1bs-token"
	for name, tc := range map[string]struct {
		config string // lfs.url in the submodule's .lfsconfig; THIEF and HOST are URLs
		href   string // of the object
		class  events.Class
		asked  bool // the thief is asked
	}{
		"its own server":                {},
		"a server at another port":      {config: "THIEF/libs/a.git/info/lfs", class: events.ClassNotFound, asked: true},
		"a server outside of all":       {config: "HOST/other/a.git/info/lfs", class: events.ClassAuth},
		"that of the repository":        {config: "HOST/acme/widgets.git/info/lfs", class: events.ClassNotFound},
		"an object at another port":     {href: "THIEF/libs/object", class: events.ClassNotFound, asked: true},
		"an object out of the prefix":   {href: "HOST/libs/..;/other/object", class: events.ClassNotFound},
		"an object in another's prefix": {href: "HOST/acme/widgets.git/object", class: events.ClassNotFound},
		"a server on a private network": {config: "http://127.0.0.2:1/lfs", class: events.ClassConfig},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			thief := newThief(t, http.NotFound)
			base := strings.TrimSuffix(w.git.URL("x"), "/x.git")
			places := strings.NewReplacer("THIEF", thief.URL, "HOST", base)
			v, err := volume.OpenVolume(w.root, volume.Config{Net: wire.Config{Hosts: []string{"127.0.0.1"}}})
			must(t, err)
			t.Cleanup(v.Close)
			w.handlers.Volume = v
			w.credential("own", token, "acme")
			w.credential("libs", libsToken, "libs")
			w.withPrivate(map[string]string{"libs/a": libsToken, "other/a": token})
			w.git.RequireAuth("acme/widgets", "bot", token)
			server := w.git.LFS("libs/a")
			if tc.href != "" {
				server.Set(gitserver.LFSHooks{Answer: func(_ map[string]any, objects []map[string]any) {
					objects[0]["actions"] = map[string]any{"download": map[string]any{"href": places.Replace(tc.href)}}
				}})
			}
			files := map[string]string{".gitattributes": "*.bin filter=lfs\n", "f.bin": server.Put("content")}
			if tc.config != "" {
				files[".lfsconfig"] = "[lfs]\n\turl = " + places.Replace(tc.config) + "\n"
			}
			commit, err := w.git.Commit(context.Background(), "libs/a", gitserver.Main, gitserver.Edit{Write: files})
			must(t, err)
			_, err = w.git.Commit(context.Background(), "acme/widgets", gitserver.Main, gitserver.Edit{
				Write:     map[string]string{".gitmodules": "[submodule \"a\"]\n\tpath = a\n\turl = ../../libs/a.git\n"},
				Submodule: map[string]string{"a": commit}, Delete: []string{"libs", "other"},
			})
			must(t, err)
			url := w.git.URL("acme/widgets")
			w.watchAs(watch.Watch{
				App: "build", URL: url, Credential: "own",
				Options: watch.With(lfs.Options{Mode: lfs.Fetch}, submodules.Options{Mode: events.SubmodulesRequired, Credentials: []string{"libs"}}),
			}, "")
			_, err = w.handle("1-0", events.Change{URL: url, Credential: "own", App: "build", Watched: true})
			if (err == nil) != (tc.class == "") || err != nil && events.ClassOf(err) != tc.class {
				t.Errorf("%v, want class %q", err, tc.class)
			}
			if tc.class == "" && w.read("acme/widgets/a/f.bin") != "content" {
				t.Errorf("f.bin is %q", w.read("acme/widgets/a/f.bin"))
			}
			received := strings.Join(thief.all(), "\n")
			if tc.asked != (received != "") || strings.Contains(received, "Authorization") {
				t.Errorf("the other host received %q", received)
			}
			for repo, others := range map[string][]string{"acme/widgets": {libsToken}, "libs/a": {token}, "other/a": {token, libsToken}} {
				for _, other := range others {
					if slices.Contains(w.git.TokensSeen(repo), other) {
						t.Errorf("the credential of another prefix was sent to %s", repo)
					}
				}
			}
			if err != nil && (strings.Contains(err.Error(), token) || strings.Contains(err.Error(), libsToken)) {
				t.Errorf("a token is in %v", err)
			}
		})
	}
}

// TestMissingSubmodulesAreInTheState has a submodule that is missing, on two refs of which one is deleted.
func TestMissingSubmodulesAreInTheState(t *testing.T) {
	w := newWorld(t)
	w.withPrivate(map[string]string{"libs/a": "right"})
	url := w.git.URL("acme/widgets")
	must(t, w.git.SetRef(context.Background(), "acme/widgets", "refs/heads/dev", w.git.Head("acme/widgets", "refs/heads/main")))
	parts := submodules.Options{Mode: events.SubmodulesBestEffort}
	of := watch.Watch{App: "build", URL: url, Options: watch.With(parts)}
	want := func(entry string, refs ...string) {
		t.Helper()
		w.due(entry)
		known := testenv.Must(w.states.Load(context.Background(), w.repo()))(t)
		got := []string{}
		for _, m := range known.Missing() {
			if got = append(got, m.Ref); m.Count != 1 || m.First[0].Path != "libs/a" || m.First[0].Class != events.ClassAuth || m.Commit == "" {
				t.Errorf("%s: %+v", entry, m)
			}
		}
		if !slices.Equal(got, refs) {
			t.Errorf("%s: submodules are missing on %q, want %q", entry, got, refs)
		}
	}
	w.watchAs(of, "")
	w.watchAs(of, "dev")
	want("1-0", "refs/heads/dev", "refs/heads/main")
	must(t, w.git.DeleteRef(context.Background(), "acme/widgets", "refs/heads/dev"))
	w.missTwice("1-5")
	want("2-0", "refs/heads/main")
	w.credential("libs", "right", "libs")
	parts.Credentials = []string{"libs"}
	of.Options = watch.With(parts)
	w.watchAs(of, "")
	want("3-0")
}
