package e2e

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
)

// The files fault_*_test.go, apps_test.go and push_cost_test.go see of Lockstep what its users see: processes, entries
// of streams, HTTP, files. They import nothing of ours but test support, and package events to decode results.

// service is a lockstep process, with a Redis and a volume.
type service struct {
	*testing.T
	redis   *redistest.Server
	client  redis.UniversalClient
	root    string
	address string // of its HTTP API
	process *proctest.Process
	cmd     []string
	env     []string
}

// startService starts lockstep serve with these additional arguments.
func startService(t *testing.T, env []string, args ...string) *service {
	t.Helper()
	return startServiceOn(t, redistest.Start(t), env, args...)
}

func startServiceOn(t *testing.T, server *redistest.Server, env []string, args ...string) *service {
	t.Helper()
	s := &service{T: t, redis: server, client: server.Client(), root: t.TempDir(), env: env}
	s.cmd = append([]string{"serve", "--redis", server.URL(), "--root", s.root, "--listen", "127.0.0.1:0", "--spool", ""}, args...)
	s.start()
	return s
}

// start starts the process, again if it was killed.
func (s *service) start() {
	s.Helper()
	cmd := proctest.Command(s.T, s.cmd...)
	cmd.Env = append(os.Environ(), s.env...)
	s.process = proctest.StartCommand(s.T, cmd)
	s.address = s.process.ListenAddress("listening")
}

// credentialFor returns variables that define a credential with a token, for one prefix of URLs.
func credentialFor(name, token, prefix string) []string {
	return []string{"LOCKSTEP_CREDENTIAL_" + name + "_PASSWORD=" + token, "LOCKSTEP_CREDENTIAL_" + name + "_URLS=" + prefix}
}

// publish adds a change to the stream as any program may, in plain fields, and returns its entry.
func (s *service) publish(url string, fields ...string) (entry string) {
	s.Helper()
	args := &redis.XAddArgs{Stream: "lockstep:{0}:changes", Values: append([]string{"url", url}, fields...)}
	return proctest.Must(s.client.XAdd(context.Background(), args).Result())(s.T)
}

// results returns all results so far.
func (s *service) results() (all []events.Result) {
	s.Helper()
	for _, entry := range proctest.Must(s.client.XRange(context.Background(), "lockstep:{0}:results", "-", "+").Result())(s.T) {
		all = append(all, proctest.DecodeResult(s.T, entry))
	}
	return all
}

// resultOf returns the result of a change, if there is one.
func (s *service) resultOf(entry string) (events.Result, bool) {
	s.Helper()
	all := s.results()
	i := slices.IndexFunc(all, func(r events.Result) bool { return slices.Contains(r.Deliveries, entry) })
	if i < 0 {
		return events.Result{}, false
	}
	return all[i], true
}

// await waits for the result of a change.
func (s *service) await(entry string) (result events.Result) {
	s.Helper()
	proctest.Eventually(s.T, func() (ok bool) { result, ok = s.resultOf(entry); return ok }, "a result of %s", entry)
	return result
}

// awaitSynced waits until a change has settled well.
func (s *service) awaitSynced(entry string) events.Result {
	s.Helper()
	r := s.await(entry)
	if r.Type != events.ResultSynced {
		s.Fatalf("%s %s: %s", r.Type, r.Repo, r.Error)
	}
	return r
}

// awaitAllSynced waits until all changes have results, all of which are good, and checks that there are no dead letters.
func (s *service) awaitAllSynced(entries []string) {
	s.Helper()
	left := len(entries)
	proctest.Eventually(s.T, func() bool {
		left = len(entries)
		for _, r := range s.results() {
			for _, id := range r.Deliveries {
				if slices.Contains(entries, id) {
					left--
				}
			}
		}
		return left <= 0
	}, "results of all %d changes; %d are missing", len(entries), &left)
	for _, r := range s.results() {
		if r.Type != events.ResultSynced {
			s.Errorf("%s %s: %s", r.Type, r.Repo, r.Error)
		}
	}
	if n := proctest.Must(s.client.XLen(context.Background(), "lockstep:{0}:dead").Result())(s.T); n > 0 {
		s.Errorf("%d dead letters", n)
	}
}

// charged counts the results of changes that needed more than one attempt.
func (s *service) charged() (n int) {
	s.Helper()
	for _, r := range s.results() {
		if r.Attempts > 1 {
			n++
		}
	}
	return n
}

// do sends an HTTP request with a JSON body, or without one, and returns status and answer.
func (s *service) do(method, path, body string, header ...string) (status int, answer string) {
	s.Helper()
	req := proctest.Must(http.NewRequest(method, "http://"+s.address+path, bytes.NewReader([]byte(body))))(s.T)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp := proctest.Must(http.DefaultClient.Do(req))(s.T)
	defer resp.Body.Close()
	return resp.StatusCode, string(proctest.Must(io.ReadAll(resp.Body))(s.T))
}

// watch adds a watch over the API.
func (s *service) watch(fields map[string]any) {
	s.Helper()
	body := proctest.Must(json.Marshal(fields))(s.T)
	if status, answer := s.do("PUT", "/api/v1/watches", string(body)); status >= 300 {
		s.Fatalf("watch %s: %d %s", body, status, answer)
	}
}

const faultHookSecret = "a secret of sixteen bytes or more"

// hookEnv defines a source of webhooks, ci.
func hookEnv() []string {
	return []string{"LOCKSTEP_HOOK_CI_FORGE=standard", "LOCKSTEP_HOOK_CI_SECRET=" + faultHookSecret}
}

// deliver sends a webhook of a push to main and returns the answer, which has status 202.
func (s *service) deliver(id, url, after string) map[string]any {
	s.Helper()
	return s.deliverPush(id, url, "main", "", after)
}

func (s *service) deliverPush(id, url, ref, before, after string) map[string]any {
	s.Helper()
	body := fmt.Sprintf(`{"type":"pushed","data":{"url":%q,"ref":%q,"before":%q,"after":%q}}`, url, ref, before, after)
	at := strconv.FormatInt(time.Now().Unix(), 10)
	mac := hmac.New(sha256.New, []byte(faultHookSecret))
	_, _ = fmt.Fprintf(mac, "%s.%s.%s", id, at, body)
	var status int
	var answer string
	proctest.Eventually(s.T, func() bool { // as senders do, which repeat what is answered with 503
		status, answer = s.do("POST", "/hooks/ci", body, "Content-Type", "application/json", "webhook-id", id, "webhook-timestamp", at,
			"webhook-signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
		return status != http.StatusServiceUnavailable
	}, "an answer to delivery %s other than 503", id)
	if status != http.StatusAccepted {
		s.Fatalf("delivery %s: %d %s", id, status, answer)
	}
	return proctest.DecodeJSON(s.T, answer)
}

// appCredentialFor returns variables that define a GitHub App, whose tokens an API issues, for one prefix of URLs.
func appCredentialFor(t *testing.T, name string, api *remoteHost, prefix string) []string {
	t.Helper()
	name = "LOCKSTEP_CREDENTIAL_" + name
	key := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(proctest.Must(rsa.GenerateKey(rand.Reader, 2048))(t))})
	return []string{
		name + "_URLS=" + prefix, name + "_GITHUB_APP_ID=1", name + "_GITHUB_INSTALLATION_ID=1",
		name + "_GITHUB_URL=" + strings.TrimSuffix(api.base, "/"), name + "_GITHUB_PRIVATE_KEY=" + string(key),
	}
}
