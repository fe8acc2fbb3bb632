package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/state"
	"lockstep/internal/testenv"
)

// TestCellsOfTheComposeFile runs the processes of deploy/cells/compose.yaml with their settings, at other addresses and paths: a change that is
// sent to the receiver is handled by its cell, and the cell that is drained gives its repositories to the other one.
func TestCellsOfTheComposeFile(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	var file struct {
		Services map[string]struct {
			Command     []string          `yaml:"command"`
			Environment map[string]string `yaml:"environment"`
		} `yaml:"services"`
	}
	proctest.Must(0, yaml.Unmarshal(proctest.Must(os.ReadFile("../../deploy/cells/compose.yaml"))(t), &file))(t)
	ctx, git, cluster, dir := t.Context(), proctest.StartGit(t), redistest.StartCluster(t), t.TempDir()
	secret := filepath.Join(dir, "api-token")
	proctest.Must(0, os.WriteFile(secret, []byte("t0ken-of-the-compose-file"), 0o600))(t)
	ports := map[string]string{":8080": proctest.FreeAddress(t), "127.0.0.1:9091": proctest.FreeAddress(t), "127.0.0.1:9092": proctest.FreeAddress(t)}
	environment := func(service string) (env []string) {
		for name, value := range file.Services[service].Environment {
			switch name {
			case "LOCKSTEP_REDIS":
				value = cluster.URL()
			case "LOCKSTEP_ROOT", "LOCKSTEP_SPOOL":
				value = filepath.Join(dir, service)
			case "LOCKSTEP_API_TOKEN_FILE":
				value = secret
			default:
				for port, address := range ports {
					value = strings.TrimSuffix(strings.Replace(value+"\n", port+"\n", address+"\n", 1), "\n")
				}
			}
			env = append(env, name+"="+value)
		}
		return env
	}
	for _, name := range []string{"add-eu-1", "add-eu-2"} {
		if out, errs, code := proctest.RunLockstep(t, environment(name), file.Services[name].Command...); code != 0 {
			t.Fatalf("%s: exit code %d\n%s%s", name, code, out, errs)
		}
	}
	for _, name := range []string{"eu-1", "eu-2", "receiver"} {
		cmd := proctest.Command(t, "serve")
		cmd.Env = append(cmd.Env, environment(name)...)
		proctest.StartCommand(t, cmd).AwaitLog("listening")
	}
	all := append(environment("add-eu-1"), "LOCKSTEP_ROOT="+dir)
	repos := []string{"acme/one", "acme/two", "acme/three"}
	for _, name := range repos {
		proctest.Must(git.Create(ctx, name, map[string]string{"a": name}))(t)
		if out, errs, code := proctest.RunLockstep(t, all, "watch", "add", git.URL(name), "--app", "docs"); code != 0 {
			t.Fatalf("watch add: exit code %d\n%s%s", code, out, errs)
		}
		body := strings.NewReader(`{"repo": "` + name + `", "url": "` + git.URL(name) + `"}`)
		req := proctest.Must(http.NewRequestWithContext(ctx, http.MethodPost, "http://"+ports[":8080"]+"/api/v1/changes", body))(t)
		req.Header.Set("Authorization", "Bearer t0ken-of-the-compose-file")
		resp := proctest.Must(http.DefaultClient.Do(req))(t)
		resp.Body.Close()
		if resp.StatusCode != http.StatusAccepted {
			t.Fatalf("POST: %s", resp.Status)
		}
	}
	if out, errs, code := proctest.RunLockstep(t, all, "cells", "drain", "eu-1"); code != 0 {
		t.Fatalf("drain: exit code %d\n%s%s", code, out, errs)
	}
	client := redistest.Open(t, cluster.URL())
	for _, name := range repos {
		repo := proctest.Must(events.ParseRepoPath(name))(t)
		proctest.Eventually(t, func() bool {
			known, err := state.NewStore(client, cells.PrefixOf("eu-2")).Load(ctx, repo)
			return err == nil && known.IsHere() && known.Given("docs", mainRef) != "" && !known.IsUnfetched()
		}, "%s is in the cell that is left", name)
		text, err := os.ReadFile(filepath.Join(dir, "eu-2", name, "a"))
		if err != nil || string(text) != name {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
}
