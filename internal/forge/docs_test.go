package forge_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"testing"
	"time"

	"lockstep/internal/forge"
)

// TestDocumentedCommand runs the example in docs/webhooks.md.
func TestDocumentedCommand(t *testing.T) {
	for _, tool := range []string{"sh", "curl", "openssl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(tool + " is not installed")
		}
	}
	text, err := os.ReadFile("../../docs/webhooks.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```sh\n(.*?)```").FindSubmatch(text)
	if block == nil {
		t.Fatal("docs/webhooks.md has no command")
	}
	got := make(chan forge.Delivery, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		d, err := forge.Receive(source(forge.Standard), req.Header, body, time.Now())
		if err != nil || req.URL.Path != "/hooks/ci" {
			http.Error(w, "no", http.StatusUnauthorized)
			t.Errorf("%s: %v", req.URL.Path, err)
			return
		}
		got <- d
	}))
	defer server.Close()
	cmd := exec.CommandContext(t.Context(), "sh", "-euc", string(block[1]))
	cmd.Env = append(os.Environ(), "LOCKSTEP="+server.URL, "SECRET="+secret, "no_proxy=*")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if d := <-got; summary(d) != "pushed "+widgets+" refs/heads/main - -" {
		t.Error(summary(d))
	}
}
