// Command notified is an app that gets notifications: it verifies each, and prints the repository, the commit and the number of changed
// files. docs/tutorial.md uses it.
package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:9000", "address")
	secretFile := flag.String("secret-file", "credentials/docs/signingSecret", "file with the signing secret")
	flag.Parse()
	if err := run(*listen, *secretFile); err != nil {
		fmt.Fprintln(os.Stderr, "notified:", err)
		os.Exit(1)
	}
}

func run(listen, secretFile string) error {
	secret, err := os.ReadFile(secretFile)
	if err != nil {
		return fmt.Errorf("%w; run lockstep init in this folder first", err)
	}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("%w; choose another address with -listen", err)
	}
	fmt.Printf("waiting for notifications at http://%s\n", listener.Addr())
	server := http.Server{Handler: handler(strings.TrimSpace(string(secret)), os.Stdout), ReadTimeout: 15 * time.Second}
	return server.Serve(listener)
}

// handler prints verified notifications to out.
func handler(secret string, out io.Writer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 20_000))
		if err != nil || !verify(secret, r.Header, body) {
			http.Error(w, "not signed by Lockstep", http.StatusUnauthorized)
			return
		}
		var event struct {
			Type, Subject string
			Data          struct {
				After string
				Files []json.RawMessage
			}
		}
		if err := json.Unmarshal(body, &event); err != nil {
			http.Error(w, "not an event", http.StatusBadRequest)
			return
		}
		if event.Data.After == "" { // a test, a removal or a failure
			fmt.Fprintf(out, "%s %s\n", event.Type, event.Subject)
		} else {
			fmt.Fprintf(out, "%s %s %.12s, changed files: %d\n", event.Type, event.Subject, event.Data.After, len(event.Data.Files))
		}
		w.WriteHeader(http.StatusNoContent)
	})
}

// verify reports whether a request is signed with the secret, and not older than five minutes.
func verify(secret string, h http.Header, body []byte) bool {
	key := []byte(secret)
	if text, ok := strings.CutPrefix(secret, "whsec_"); ok {
		var err error
		if key, err = base64.StdEncoding.DecodeString(text); err != nil {
			return false
		}
	}
	sent, err := strconv.ParseInt(h.Get("webhook-timestamp"), 10, 64)
	if err != nil || len(key) == 0 || math.Abs(time.Since(time.Unix(sent, 0)).Seconds()) > 300 {
		return false
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(h.Get("webhook-id") + "." + h.Get("webhook-timestamp") + "."))
	mac.Write(body)
	want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	for signature := range strings.FieldsSeq(h.Get("webhook-signature")) {
		if hmac.Equal([]byte(signature), []byte(want)) {
			return true
		}
	}
	return false
}
