package e2e

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/server"
	"lockstep/internal/term"
)

// healthOf requests /livez or /readyz. It returns the failed checks by name, and the names of all checks.
func healthOf(t *testing.T, url string) (status int, failed map[string]server.Finding, names string) {
	t.Helper()
	req := proctest.Must(http.NewRequestWithContext(context.Background(), http.MethodGet, url, http.NoBody))(t)
	req.Header.Set("Accept", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, ""
	}
	defer resp.Body.Close()
	var r server.Report
	proctest.Must(0, json.Unmarshal(proctest.Must(io.ReadAll(resp.Body))(t), &r))(t)
	failed = map[string]server.Finding{}
	var all []string
	for _, c := range r.Checks {
		all = append(all, c.Name)
		if !c.OK {
			failed[c.Name] = c
		}
	}
	return resp.StatusCode, failed, strings.Join(all, " ")
}

func TestReadinessCoversRolesAndDependencies(t *testing.T) {
	t.Parallel()
	server, root := redistest.Start(t), t.TempDir()
	p := proctest.Start(t, "serve", "--redis", server.URL(), "--root", root, "--listen", "127.0.0.1:0", "--roles", "worker,scheduler,notifier")
	url := "http://" + p.ListenAddress("listening")
	proctest.Eventually(t, func() bool { status, _, _ := healthOf(t, url+"/readyz"); return status == http.StatusOK }, "it is ready")
	if _, _, names := healthOf(t, url+"/readyz"); names != "shutdown redis volume changes scheduler notifier" {
		t.Errorf("checks %q", names)
	}
	if _, _, names := healthOf(t, url+"/livez"); names != "changes scheduler notifier" {
		t.Errorf("live checks %q", names)
	}

	unready := func(check, reason string) {
		t.Helper()
		proctest.Eventually(t, func() bool {
			status, failed, _ := healthOf(t, url+"/readyz")
			return status == http.StatusServiceUnavailable && failed[check].Counts && strings.Contains(failed[check].Reason, reason)
		}, "%s is not ready: %s", check, reason)
		if status, _, _ := healthOf(t, url+"/livez"); status != http.StatusOK {
			t.Errorf("%s: livez %d, want 200: a restart would not help", reason, status)
		}
	}
	ready := func() {
		t.Helper()
		proctest.Eventually(t, func() bool { status, _, _ := healthOf(t, url+"/readyz"); return status == http.StatusOK }, "it is ready again")
	}
	admin := filepath.Join(root, ".lockstep")
	id := proctest.Must(os.ReadFile(filepath.Join(admin, "volume")))(t)
	proctest.Must(0, os.Rename(admin, admin+"-away"))(t)
	unready("volume", "is it mounted?")
	proctest.Must(0, os.Rename(admin+"-away", admin))(t)
	ready()
	proctest.Must(0, os.WriteFile(filepath.Join(admin, "volume"), []byte("ANOTHERVOLUMEALTOGETHER\n"), 0o644))(t)
	unready("volume", "not the volume that was mounted")
	proctest.Must(0, os.WriteFile(filepath.Join(admin, "volume"), id, 0o644))(t)
	ready()
	server.Stop()
	unready("redis", "does not answer")
	server.Restart()
	ready()
}

func TestWorkerIsNotReadyBeforeItStarts(t *testing.T) {
	t.Parallel()
	server := redistest.StartReal(t)
	proctest.Must(0, server.Client().Do(t.Context(), "REPLICAOF", "127.0.0.1", "1").Err())(t)
	p := proctest.Start(t, "serve", "--redis", server.URL(), "--root", t.TempDir(), "--listen", "127.0.0.1:0", "--roles", "worker")
	url := "http://" + p.ListenAddress("listening")
	p.AwaitLog("waiting for redis")
	proctest.Eventually(t, func() bool { // a slow check of Redis has another reason
		status, failed, _ := healthOf(t, url+"/readyz")
		return status == http.StatusServiceUnavailable && failed["redis"].Reason == "answers, but cannot be used yet" &&
			failed["changes"].Reason == "waiting for Redis"
	}, "readyz reports why it is not ready")
	if status, _, _ := healthOf(t, url+"/livez"); status != http.StatusOK {
		t.Errorf("livez %d", status)
	}
	proctest.Must(0, server.Client().Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())(t)
	proctest.Eventually(t, func() bool { status, _, _ := healthOf(t, url+"/readyz"); return status == http.StatusOK }, "it is ready")
	if n := strings.Count(p.Log.String(), "READONLY"); n != 1 {
		t.Errorf("logged %d times that Redis is read-only, want once", n)
	}
}

func TestReceiverWithSpoolIsReadyWithoutRedis(t *testing.T) {
	t.Parallel()
	for name, roles := range map[string]string{"a receiver": "receiver", "a receiver and worker": "receiver,worker"} {
		t.Run(name, func(t *testing.T) {
			redisServer, dir := redistest.Start(t), t.TempDir()
			spool := filepath.Join(dir, "spool")
			redisServer.Stop()
			p := proctest.Start(t, "serve", "--roles", roles, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--redis", redisServer.URL(),
				"--root", t.TempDir(), "--spool", spool, "--hooks", writeHooks(t, dir))
			url := "http://" + p.ListenAddress("listening")
			proctest.Eventually(t, func() bool {
				status, failed, _ := healthOf(t, url+"/readyz")
				return status == http.StatusOK && failed["redis"].Reason != "" && !failed["redis"].Counts
			}, "it is ready, and reports that Redis is down")
			if os.Getuid() == 0 { // root ignores permissions
				proctest.Must(0, os.Rename(spool, spool+"-away"))(t)
			} else {
				proctest.Must(0, os.Chmod(spool, 0o500))(t)
			}
			proctest.Eventually(t, func() bool {
				status, failed, _ := healthOf(t, url+"/readyz")
				return status == http.StatusServiceUnavailable && failed["redis"].Counts && failed["spool"].Counts
			}, "it is not ready without Redis and spool")
		})
	}
}

func TestHealthChecksRevealNoSecrets(t *testing.T) {
	t.Parallel()
	server, root := redistest.Start(t), filepath.Join(t.TempDir(), "private-root")
	address := strings.TrimPrefix(server.URL(), "redis://")
	server.Stop()
	cmd := proctest.Command(t, "serve", "--root", root, "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--roles", "worker,notifier,scheduler")
	cmd.Env = append(os.Environ(), "LOCKSTEP_REDIS=redis://someone:hunter2@"+address)
	p := proctest.StartCommand(t, cmd)
	admin, public := "http://"+p.ListenAddress(`"listening for operators"`), "http://"+p.ListenAddress("listening")
	p.AwaitLog("waiting for redis")
	proctest.Must(0, os.Rename(filepath.Join(root, ".lockstep"), filepath.Join(root, "away")))(t)
	for _, url := range []string{public + "/readyz", public + "/readyz?verbose", admin + "/readyz?verbose", public + "/livez?verbose"} {
		resp := proctest.Must(http.Get(url))(t)
		text := string(proctest.Must(io.ReadAll(resp.Body))(t))
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK && !strings.Contains(text, "does not answer") {
			t.Errorf("%s: %d %s", url, resp.StatusCode, text)
		}
		for _, secret := range []string{"hunter2", "someone", address, root} {
			if strings.Contains(text, secret) {
				t.Errorf("%s reveals %q:\n%s", url, secret, text)
			}
		}
	}
}

func TestAdminListenerAloneServesHealthAndMetrics(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p := proctest.Start(t, "serve", "--redis", server.URL(), "--root", t.TempDir(), "--roles", "worker", "--admin-listen", "127.0.0.1:0")
	admin := "http://" + p.ListenAddress(`"listening for operators"`)
	proctest.Eventually(t, func() bool { status, _, _ := healthOf(t, admin+"/readyz"); return status == http.StatusOK }, "it is ready")
	proctest.Eventually(t, func() bool { return samplesOf(t, strings.TrimPrefix(admin, "http://"))["lockstep_streams_up"] == 1 }, "metrics of streams")
	if code := p.Terminate(); code != term.ExitDone {
		t.Errorf("exit code %d", code)
	}
}
