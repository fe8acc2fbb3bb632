package main

import (
	"bytes"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"testing"

	"lockstep/events"
	"lockstep/internal/notify"
	"lockstep/internal/testenv"
	"lockstep/internal/watch"
)

type secrets string

func (s secrets) SigningSecrets(string, string) ([]string, error) { return []string{string(s)}, nil }

func TestOnlySignedNotificationsArePrinted(t *testing.T) {
	testenv.Long(t)
	repo, err := events.ParseRepoPath("acme/widgets")
	if err != nil {
		t.Fatal(err)
	}
	secret := "whsec_" + base64.StdEncoding.EncodeToString([]byte("0123456789abcdef0123456789abcdef"))
	for signer, want := range map[string]int{secret: http.StatusNoContent, "another secret of an app": http.StatusUnauthorized} {
		var out bytes.Buffer
		app := httptest.NewServer(handler(secret, &out))
		cfg := notify.Config{Secrets: secrets(signer), Hosts: []string{"127.0.0.1"}}
		got, err := notify.Test(t.Context(), cfg, watch.Watch{App: "docs", Repo: repo, NotifyURL: app.URL})
		app.Close()
		if printed := out.Len() > 0; err != nil || got.Status != want || printed != (want == http.StatusNoContent) {
			t.Errorf("%d, %v, printed %q, want %d", got.Status, err, out.String(), want)
		}
	}
}
