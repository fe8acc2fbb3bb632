package forge_test

import (
	"strings"
	"testing"

	"lockstep/internal/forge"
)

// FuzzReceive decodes any signed body as any event of any forge, and any header as a signature.
func FuzzReceive(f *testing.F) {
	for _, p := range payloads {
		f.Add(string(p.kind), p.event, []byte(p.body), "", "")
	}
	f.Add("github", "push", []byte(`{}`), "sha256=00", "application/x-www-form-urlencoded")
	f.Add("azure", "", []byte(`{"eventType":"git.repo.deleted","resource":{"project":{"url":"https://a@b/_apis/"}}}`), "Basic Og==", "")
	f.Add("gitlab", "System Hook", []byte(`{"event_name":"project_rename","path_with_namespace":"a/b","old_path_with_namespace":"c/d"}`), "", "https://git.example.com")
	f.Fuzz(func(t *testing.T, kind, event string, body []byte, signature, other string) {
		src := source(forge.Kind(kind))
		if _, ok := headersOf[src.Kind]; !ok {
			return
		}
		src.URLs = strings.Fields(other)
		header := signed(src, event, body)
		header.Set("Content-Type", other)
		header.Set("X-Gitlab-Instance", other)
		d, err := forge.Receive(src, header, body, now)
		if err != nil {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the error contains the secret: %v", err)
			}
		} else {
			checkSound(t, d)
		}
		for _, name := range []string{"X-Hub-Signature", "X-Hub-Signature-256", "X-Gitea-Signature", "X-Forgejo-Signature", "X-Gitlab-Token", "X-Lockstep-Token", "Authorization", "Webhook-Signature"} {
			header.Set(name, signature)
		}
		if strings.Contains(signature, secret) || strings.Contains(strings.ToLower(signature), hexMAC(secret, body)) {
			return
		}
		if _, err := forge.Receive(src, header, body, now); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("signature %q: %v", signature, err)
		}
	})
}
