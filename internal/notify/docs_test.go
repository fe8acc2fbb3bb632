package notify

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestDocumentedReceivers runs the receivers in the docs on valid and on modified posts.
func TestDocumentedReceivers(t *testing.T) {
	docs := string(must(os.ReadFile("../../docs/notifications.md"))(t))
	snippet := func(language string) string {
		_, after, _ := strings.Cut(docs, "```"+language+"\n")
		code, _, found := strings.Cut(after, "```")
		if !found {
			t.Fatalf("no snippet in %s", language)
		}
		return code
	}
	const goMain = `package main
import ("crypto/hmac"; "crypto/sha256"; "encoding/base64"; "encoding/json"; "fmt"; "net/http"; "os"; "strconv"; "strings"; "time")
func main() {
	var in struct { Secret, Body string; Headers map[string]string }
	_ = json.NewDecoder(os.Stdin).Decode(&in)
	h := http.Header{}
	for name, value := range in.Headers { h.Set(name, value) }
	fmt.Print(verify(in.Secret, h, []byte(in.Body)))
}
`
	programs := map[string]struct{ file, code, command string }{
		"go": {"main.go", goMain + snippet("go"), "go"},
		"js": {"main.js", snippet("js") + `
const { Secret, Headers, Body } = JSON.parse(require('node:fs').readFileSync(0))
process.stdout.write(String(verify(Secret, Headers, Buffer.from(Body))))
`, "node"},
		"python": {"main.py", snippet("python") + `
import json, sys
given = json.load(sys.stdin)
print(str(verify(given["Secret"], given["Headers"], given["Body"].encode())).lower(), end="")
`, "python3"},
	}
	w, apps := newApp(t)
	w.run()
	w.publish(synced(t, "r1", "docs", "acme/a"))
	p := apps.await(atLeast(1))[0]
	headers := func(change func(http.Header)) map[string]string {
		h := p.header.Clone()
		change(h)
		flat := map[string]string{}
		for name := range h {
			flat[strings.ToLower(name)] = h.Get(name)
		}
		return flat
	}
	same := func(http.Header) {}
	for language, program := range programs {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(program.command); err != nil {
				t.Skip("needs ", program.command)
			}
			path := filepath.Join(t.TempDir(), program.file)
			must(0, os.WriteFile(path, []byte(program.code), 0o600))(t)
			command := []string{program.command, path}
			if language == "go" {
				command = []string{filepath.Join(t.TempDir(), "verify")}
				must(exec.Command("go", "build", "-o", command[0], path).CombinedOutput())(t)
			}
			for name, tc := range map[string]struct {
				secret, body string
				headers      map[string]string
				want         string
			}{
				"valid":            {secret, string(p.body), headers(same), "true"},
				"previous secret":  {former, string(p.body), headers(same), "true"},
				"another secret":   {"whsec_AAAA", string(p.body), headers(same), "false"},
				"another body":     {secret, string(p.body) + " ", headers(same), "false"},
				"another id":       {secret, string(p.body), headers(func(h http.Header) { h.Set("webhook-id", "msg_x") }), "false"},
				"an old timestamp": {secret, string(p.body), headers(func(h http.Header) { h.Set("webhook-timestamp", "1614265330") }), "false"},
				"no timestamp":     {secret, string(p.body), headers(func(h http.Header) { h.Set("webhook-timestamp", "x") }), "false"},
			} {
				input := must(json.Marshal(map[string]any{"Secret": tc.secret, "Headers": tc.headers, "Body": tc.body}))(t)
				cmd := exec.Command(command[0], command[1:]...)
				cmd.Stdin = bytes.NewReader(input)
				if out, err := cmd.CombinedOutput(); string(out) != tc.want {
					t.Errorf("%s: %s, want %s (%v)", name, out, tc.want, err)
				}
			}
		})
	}
}
