package forge_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"lockstep/internal/forge"
)

// folders writes the files of sources and returns their directory.
func folders(t *testing.T, sources map[string]map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, files := range sources {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		for file, text := range files {
			write(t, filepath.Join(dir, name, file), text)
		}
	}
	return dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestLoadSourcesFromFilesAndVariables(t *testing.T) {
	dir := folders(t, map[string]map[string]string{
		"hub": {"forge": "github\n", "secret": secret + "\r\n", "previousSecret": earlier + "\n", "urls": "https://github.com/acme/\nhttps://github.com/initech/\n",
			"autoApp": "docs\n", "autoCredential": "ci", "autoURLs": "https://github.com/acme/"},
		"my-lab": {"forge": "gitlab"},
		"open.1": {"forge": "standard", "unsigned": "true\n", "previousSecret": ""},
	})
	if err := os.Symlink("hub", filepath.Join(dir, "..data")); err != nil { // like Kubernetes
		t.Fatal(err)
	}
	sources, err := forge.LoadSources(dir, []string{
		"LOCKSTEP_HOOK_HUB_SECRET=the-file-wins-over-this", "LOCKSTEP_HOOK_MY_LAB_SECRET=" + secret,
		"LOCKSTEP_HOOK_TEA_1_FORGE=gitea", "LOCKSTEP_HOOK_TEA_1_SECRET=" + secret, "LOCKSTEP_HOOK_TEA_1_URLS=https://tea.example.com/",
		"LOCKSTEP_HOOK_PORT=tcp://10.0.0.1:80", "HOME=/", "odd",
	})
	if err != nil {
		t.Fatal(err)
	}
	if names := sources.Names(); !reflect.DeepEqual(names, []string{"hub", "my-lab", "open.1", "tea_1"}) {
		t.Errorf("names %q", names)
	}
	for _, want := range []forge.Source{
		{Name: "hub", Kind: forge.GitHub, Secrets: []string{secret, earlier}, URLs: []string{"https://github.com/acme/", "https://github.com/initech/"},
			Auto: &forge.Auto{App: "docs", Credential: "ci", URLs: []string{"https://github.com/acme/"}}},
		{Name: "my-lab", Kind: forge.GitLab, Secrets: []string{secret}, URLs: []string{}},
		{Name: "open.1", Kind: forge.Standard, Unsigned: true, URLs: []string{}},
		{Name: "tea_1", Kind: forge.Gitea, Secrets: []string{secret}, URLs: []string{"https://tea.example.com/"}},
	} {
		got, ok, err := sources.Get(want.Name)
		if err != nil || !ok || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, %v, or another source", want.Name, ok, err)
		}
	}
	for _, name := range []string{"", "HUB", "hub/", "../hub", "..data", "my_lab", "unknown"} {
		if _, ok, err := sources.Get(name); ok || err != nil {
			t.Errorf("%q: %v, %v", name, ok, err)
		}
	}
}

func TestInvalidSources(t *testing.T) {
	const short = "tooshort-s3cret"
	for name, tc := range map[string]struct {
		files map[string]string
		says  string
	}{
		"no forge":                {map[string]string{"secret": secret}, "add "},
		"unknown forge":           {map[string]string{"forge": "gogs", "secret": secret}, "want github"},
		"no secret":               {map[string]string{"forge": "github"}, "add "},
		"an empty secret":         {map[string]string{"forge": "github", "secret": "\n"}, "is empty"},
		"empty, though unsigned":  {map[string]string{"forge": "github", "secret": "", "unsigned": "true"}, "is empty"},
		"a short secret":          {map[string]string{"forge": "github", "secret": short}, "openssl rand"},
		"a short old secret":      {map[string]string{"forge": "github", "secret": secret, "previousSecret": short}, "openssl rand"},
		"an old secret alone":     {map[string]string{"forge": "github", "previousSecret": earlier}, "add "},
		"a short key in base64":   {map[string]string{"forge": "standard", "secret": "whsec_" + "dG9vLXNob3J0LXMzY3JldA=="[:20]}, "shorter than 16"},
		"a key that is no base64": {map[string]string{"forge": "gitlab", "secret": "whsec_" + secret + "!!"}, "not base64"},
		"a secret and unsigned":   {map[string]string{"forge": "github", "secret": secret, "unsigned": "true"}, "remove "},
		"perhaps unsigned":        {map[string]string{"forge": "github", "unsigned": "yes"}, "true or false"},
		"a URL without a scheme":  {map[string]string{"forge": "github", "secret": secret, "urls": "github.com/acme/"}, "https://"},
		"a URL with a password":   {map[string]string{"forge": "github", "secret": secret, "urls": "https://a:" + short + "@github.com/"}, "remove it"},
		"an app for nothing":      {map[string]string{"forge": "github", "secret": secret, "autoApp": "docs"}, "autoURLs"},
		"URLs for no app":         {map[string]string{"forge": "github", "secret": secret, "autoURLs": "https://github.com/"}, "autoApp"},
		"a credential of no name": {map[string]string{"forge": "github", "secret": secret, "autoApp": "a", "autoCredential": "../x", "autoURLs": "https://github.com/"}, "want a credential's name"},
		"an odd automatic URL":    {map[string]string{"forge": "github", "secret": secret, "autoApp": "a", "autoURLs": "/"}, "https://"},
		"a file without end":      {map[string]string{"forge": "github", "secret": strings.Repeat("x", 1<<17)}, "longer than"},
	} {
		_, err := forge.LoadSources(folders(t, map[string]map[string]string{"hub": tc.files}), nil)
		if err == nil || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), "hub") {
			t.Errorf("%s: %v, want it to say %q", name, err, tc.says)
		}
		if err != nil && (strings.Contains(err.Error(), short) || strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), earlier)) {
			t.Errorf("%s: the error contains a secret: %v", name, err)
		}
	}
}

func TestSourceNames(t *testing.T) {
	good := map[string]string{"forge": "github", "secret": secret}
	for _, name := range []string{"-hub", "a b", "hüb", "_x", strings.Repeat("x", 101)} {
		if _, err := forge.LoadSources(folders(t, map[string]map[string]string{name: good}), nil); err == nil {
			t.Errorf("%q was accepted as a name", name)
		}
	}
	for _, environ := range [][]string{
		{"LOCKSTEP_HOOK__FORGE=github"}, {"LOCKSTEP_HOOK__X_FORGE=github", "LOCKSTEP_HOOK__X_SECRET=" + secret},
		{"LOCKSTEP_HOOK_HUB_SECRET=" + secret}, {"LOCKSTEP_HOOK_HUB_FORGE=github", "LOCKSTEP_HOOK_HUP_PREVIOUS_SECRET=" + secret},
	} {
		if _, err := forge.LoadSources("", environ); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v", environ, err)
		}
	}
	dir := folders(t, map[string]map[string]string{"hub": good})
	write(t, filepath.Join(dir, "secret"), secret)
	if _, err := forge.LoadSources(dir, nil); err == nil || !strings.Contains(err.Error(), "is not a directory") {
		t.Errorf("a file among the folders: %v", err)
	}
	if _, err := forge.LoadSources(filepath.Join(dir, "absent"), nil); err == nil {
		t.Error("a folder that is not there is read")
	}
}

func TestSecretRotationWithoutRestart(t *testing.T) {
	dir := folders(t, map[string]map[string]string{"hub": {"forge": "github", "secret": earlier}})
	synctest.Test(t, func(t *testing.T) {
		sources, err := forge.LoadSources(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		secrets := func() []string {
			src, ok, err := sources.Get("hub")
			if err != nil || !ok {
				t.Fatalf("%v, %v", ok, err)
			}
			return src.Secrets
		}
		write(t, filepath.Join(dir, "hub", "secret"), secret)
		write(t, filepath.Join(dir, "hub", "previousSecret"), earlier)
		time.Sleep(time.Second - 1)
		if got := secrets(); !reflect.DeepEqual(got, []string{earlier}) {
			t.Errorf("reloaded within a second: %d secrets", len(got))
		}
		time.Sleep(time.Nanosecond)
		if got := secrets(); !reflect.DeepEqual(got, []string{secret, earlier}) {
			t.Errorf("not reloaded after a second: %d secrets", len(got))
		}

		write(t, filepath.Join(dir, "hub", "secret"), "")
		time.Sleep(time.Second)
		if src, ok, err := sources.Get("hub"); !ok || err == nil || len(src.Secrets) > 0 {
			t.Errorf("without a secret: %v, %v", ok, err)
		}
		write(t, filepath.Join(dir, "hub", "secret"), secret)
		if _, _, err := sources.Get("hub"); err == nil {
			t.Error("read again within a second of an error")
		}
		time.Sleep(time.Second)
		secrets()
	})
}

func TestAutoAllows(t *testing.T) {
	auto := &forge.Auto{App: "docs", URLs: []string{"https://git.example.com/acme/"}}
	for remote, want := range map[string]bool{
		"https://git.example.com/acme/widgets.git": true, "https://GIT.example.com/acme/x/y.git": true,
		"https://git.example.com/acmeevil/x.git": false, "https://evil.example/acme/x.git": false, "": false, "%": false,
	} {
		if got := auto.Allows(remote); got != want {
			t.Errorf("%q: %v", remote, got)
		}
	}
	if (&forge.Auto{App: "docs"}).Allows("https://git.example.com/a/b") || (*forge.Auto)(nil).Allows("https://git.example.com/a/b") {
		t.Error("allowed by nothing")
	}
}

func TestSourceNeverPrintsSecrets(t *testing.T) {
	src := source(forge.GitHub)
	encoded, err := json.Marshal(map[string]any{"source": src})
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "source", src)
	for _, text := range []string{fmt.Sprintf("%v %+v %#v %s", src, src, src, src), fmt.Sprint([]forge.Source{src}), log.String(), string(encoded)} {
		if strings.Contains(text, secret) || !strings.Contains(text, "hub") {
			t.Errorf("printed: %s", text)
		}
	}
}
