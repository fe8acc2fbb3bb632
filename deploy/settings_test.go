package deploy

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"lockstep/internal/config"
	"lockstep/internal/egress"
	"lockstep/internal/server"
	"lockstep/internal/telemetry"
)

// afterGrace is the time that a process needs to exit after the grace; see docs/operations.md.
const afterGrace = 15 * time.Second

// known returns the names of all settings.
func known(t *testing.T) map[string]bool {
	t.Helper()
	cfg, err := config.Load(nil, os.DevNull, nil)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, v := range cfg.Values() {
		names[v.Name] = true
	}
	return names
}

// deployed returns the deployment files with their text.
func deployed(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, root := range []string{"../compose.yaml", "cells", "../Dockerfile", "kubernetes", "chart", "systemd"} {
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				files[path] = string(read(t, path))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

func TestDeployedSettingsExist(t *testing.T) {
	settings := known(t)
	variable := regexp.MustCompile(`LOCKSTEP_[A-Z0-9_]+`)
	secret := regexp.MustCompile(`^LOCKSTEP_(API_TOKEN$|HOOK_|CREDENTIAL_)`)
	called := regexp.MustCompile(`(?:lockstep |\[)(?:serve|healthcheck|config|doctor|watch)\b.*`)
	flag := regexp.MustCompile(`--([a-z][a-z-]*)`)
	variables, flags := 0, 0
	for path, text := range deployed(t) {
		for _, name := range variable.FindAllString(text, -1) {
			variables++
			if !secret.MatchString(name) && !settings[strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, config.EnvPrefix), "_", "-"))] {
				t.Errorf("%s: %s is not a setting", path, name)
			}
		}
		for _, command := range called.FindAllString(text, -1) {
			for _, name := range flag.FindAllStringSubmatch(command, -1) {
				flags++
				if !settings[name[1]] && !slices.Contains([]string{"config", "help", "url"}, name[1]) {
					t.Errorf("%s: unknown flag --%s: %s", path, name[1], command)
				}
			}
		}
	}
	if variables < 20 || flags < 4 {
		t.Errorf("only %d variables and %d flags found", variables, flags)
	}
}

// pod is the part of a manifest that describes a Pod.
type pod struct {
	Spec struct {
		Template struct {
			Spec struct {
				DrainSeconds int `yaml:"terminationGracePeriodSeconds"`
				Containers   []container
			}
		}
	}
}

type container struct {
	Args  []string
	Env   []variable
	Ports []struct {
		Number int `yaml:"containerPort"`
	}
	Startup   probe `yaml:"startupProbe"`
	Liveness  probe `yaml:"livenessProbe"`
	Readiness probe `yaml:"readinessProbe"`
	Lifecycle struct {
		PreStop struct {
			Sleep struct{ Seconds int }
		} `yaml:"preStop"`
	}
	Mounts []struct {
		Name string
		Path string `yaml:"mountPath"`
	} `yaml:"volumeMounts"`
}

type probe struct {
	HTTP struct{ Path string } `yaml:"httpGet"`
}

type variable struct {
	Name, Value string
}

// TestPodSettings loads the settings of each Pod like the program.
func TestPodSettings(t *testing.T) {
	played := map[string]bool{}
	for _, file := range []string{"worker", "receiver", "notifier"} {
		t.Run(file, func(t *testing.T) {
			p := podIn(t, "kubernetes/base/"+file+".yaml")
			c := p.Spec.Template.Spec.Containers[0]
			if !slices.Equal(c.Args, []string{"serve", "--config", "/etc/lockstep/lockstep.yaml"}) {
				t.Errorf("arguments %q", c.Args)
			}
			for _, settings := range []string{"kubernetes/base/lockstep.yaml", "kubernetes/overlays/example/lockstep.yaml"} {
				cfg := loadWith(t, settings, c.Env)
				for _, role := range cfg.Roles {
					played[role] = true
				}
				drain := cfg.Grace + afterGrace + time.Duration(c.Lifecycle.PreStop.Sleep.Seconds)*time.Second
				if given := time.Duration(p.Spec.Template.Spec.DrainSeconds) * time.Second; given <= drain {
					t.Errorf("%s: grace period %v, but draining may take %v", settings, given, drain)
				}
				if _, port, err := net.SplitHostPort(cfg.Listen); err != nil || port != fmt.Sprint(c.Ports[0].Number) {
					t.Errorf("%s: listens on %s, but its port is %d", settings, cfg.Listen, c.Ports[0].Number)
				}
				if host, _, err := net.SplitHostPort(cfg.AdminListen); err != nil || !net.ParseIP(host).IsLoopback() {
					t.Errorf("%s: profiles are at %s", settings, cfg.AdminListen)
				}
				for _, mount := range c.Mounts {
					if want := map[string]string{"repos": cfg.Root, "spool": cfg.Spool, "settings": "/etc/lockstep"}[mount.Name]; want != "" && mount.Path != want {
						t.Errorf("%s: %s is mounted at %s, want %s", settings, mount.Name, mount.Path, want)
					}
				}
			}
			if c.Startup.HTTP.Path != "/livez" || c.Liveness.HTTP.Path != "/livez" || c.Readiness.HTTP.Path != "/readyz" {
				t.Error("the liveness probe must not depend on other services; use /readyz for that")
			}
		})
	}
	if got := slices.Sorted(maps.Keys(played)); !slices.Equal(got, slices.Sorted(slices.Values(config.DefaultRoles))) {
		t.Errorf("the Pods have the roles %q, want the default ones", got)
	}
}

// TestChartSettings loads the settings of the chart, and of its examples, like the program.
func TestChartSettings(t *testing.T) {
	type values struct {
		Settings map[string]any
		Worker   struct {
			DrainSeconds int `yaml:"terminationGracePeriodSeconds"`
		}
	}
	var defaults values
	if err := yaml.Unmarshal(read(t, "chart/values.yaml"), &defaults); err != nil {
		t.Fatal(err)
	}
	examples, err := filepath.Glob("chart/ci/*.yaml")
	if err != nil || len(examples) < 5 {
		t.Fatalf("%d examples: %v", len(examples), err)
	}
	for _, path := range append(examples, "chart/values.yaml") {
		var own values
		if err := yaml.Unmarshal(read(t, path), &own); err != nil {
			t.Fatal(err)
		}
		settings := maps.Clone(defaults.Settings)
		maps.Copy(settings, own.Settings)
		content, err := yaml.Marshal(settings)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "lockstep.yaml")
		if err := os.WriteFile(file, content, 0o600); err != nil {
			t.Fatal(err)
		}
		cfg := loadWith(t, file, []variable{{Name: "LOCKSTEP_API_TOKEN_FILE"}})
		if given := time.Duration(defaults.Worker.DrainSeconds) * time.Second; given <= cfg.Grace+afterGrace {
			t.Errorf("%s: grace period %v, but draining may take %v", path, given, cfg.Grace+afterGrace)
		}
	}
}

// The example's settings must allow every URL of its credentials, and GitHub's API, which issues the tokens of an App.
func TestExampleAllowsTheURLsOfItsCredentials(t *testing.T) {
	cfg := loadWith(t, "kubernetes/overlays/example/lockstep.yaml", []variable{{Name: "LOCKSTEP_API_TOKEN_FILE"}})
	decoder := yaml.NewDecoder(bytes.NewReader(read(t, "kubernetes/overlays/example/secrets.yaml")))
	checked := 0
	for {
		var secret struct {
			Metadata struct{ Name string }
			Data     map[string]string `yaml:"stringData"`
		}
		if err := decoder.Decode(&secret); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(secret.Metadata.Name, "lockstep-credential-") {
			continue
		}
		name, listed := "hosts", cfg.Hosts
		if _, signs := secret.Data["signingSecret"]; signs {
			name, listed = "notify-hosts", cfg.NotifyHosts
		}
		hosts, err := egress.ParseHosts(name, listed)
		if err != nil {
			t.Fatal(err)
		}
		urls := strings.Fields(secret.Data["urls"])
		if _, app := secret.Data["githubAppID"]; app {
			urls = append(urls, cmp.Or(secret.Data["githubURL"], "https://api.github.com"))
		}
		for _, text := range urls {
			checked++
			u, err := url.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			if err := (egress.Policy{Hosts: hosts}).CheckName(u.Hostname(), u.Port()); err != nil {
				t.Errorf("%s: %v", secret.Metadata.Name, err)
			}
		}
	}
	if checked < 4 {
		t.Errorf("only %d URLs found in the secrets", checked)
	}
}

// podIn returns the first document of a manifest.
func podIn(t *testing.T, path string) pod {
	t.Helper()
	var p pod
	if err := yaml.Unmarshal(read(t, path), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

// loadWith loads settings like a process with these variables, but skips secrets, whose files do not exist here.
func loadWith(t *testing.T, file string, variables []variable) config.Config {
	t.Helper()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("a secret of 18 bytes"), 0o600); err != nil {
		t.Fatal(err)
	}
	environ := []string{"LOCKSTEP_REDIS_PASSWORD_FILE=" + secret}
	for _, v := range variables {
		if strings.HasSuffix(v.Name, "_FILE") {
			v.Value = secret
		}
		environ = append(environ, v.Name+"="+v.Value)
	}
	cfg, err := config.Load(nil, file, environ)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return cfg
}

func TestProbedPathsAreServed(t *testing.T) {
	served := httptest.NewServer(server.Handler(server.Config{Metrics: telemetry.New().Handler()}))
	defer served.Close()
	path := regexp.MustCompile(`\bpath: (/[a-z/]*)`)
	checked := map[string]bool{}
	for _, text := range deployed(t) {
		for _, found := range path.FindAllStringSubmatch(text, -1) {
			checked[found[1]] = true
		}
	}
	for _, want := range []string{"/livez", "/readyz", "/metrics", "/hooks/"} {
		if !checked[want] {
			t.Errorf("%s not found in the files", want)
		}
	}
	for p := range checked {
		if p == "/hooks/" || strings.HasPrefix(p, "/spec/") || strings.HasPrefix(p, "/var/") { // of webhooks, a patch, a node's folder
			continue
		}
		resp, err := http.Get(served.URL + p)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", p, resp.Status)
		}
	}
}
