package wire

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/git/object"
	"lockstep/internal/testenv"
)

// FuzzServerReply checks that arbitrary responses cost little, do not panic and give a classified error.
func FuzzServerReply(f *testing.F) {
	const (
		advert = "001e# service=git-upload-pack\n0000" +
			"00571111111111111111111111111111111111111111 HEAD\x00side-band-64k shallow thin-pack multi_ack" +
			"003d1111111111111111111111111111111111111111 refs/heads/main\n0000"
		pack = "0034shallow 11111111111111111111111111111111111111110000" + "0008NAK\n" + "0012\x01PACK\x00\x00\x00\x02\x00\x00\x00\x00x0000"
	)
	f.Add([]byte(advert), []byte(pack))
	f.Add([]byte(advert), []byte("0011ERR not today"))
	f.Add([]byte("001e# service=git-upload-pack\n0000001fERR Repository not found.\n"), []byte{})
	f.Add([]byte("<html>"), []byte("0038ACK 1111111111111111111111111111111111111111 common\n0010\x03not today0000"))
	const hello = "000eversion 2\n000cls-refs\n0012fetch=shallow\n0000"
	f.Add([]byte(hello), []byte("0055"+"1111111111111111111111111111111111111111 HEAD symref-target:refs/heads/main\n0000"))
	f.Add([]byte(hello), []byte("000dpackfile\n0012\x01PACK\x00\x00\x00\x02\x00\x00\x00\x00x0000"))
	n, err := NewNetwork(Config{})
	if err != nil {
		f.Fatal(err)
	}
	limits := Limits{MaxPackBytes: 1 << 20, Timeout: 10 * time.Second}
	f.Fuzz(func(t *testing.T, listing, objects []byte) {
		r := testenv.Must(n.Dial("https://git.test/acme/widgets", Auth{}, false, limits))(t)
		defer r.Close()
		r.wire.next = roundTripper(func(req *http.Request) (*http.Response, error) {
			body := objects
			if req.Method == http.MethodGet {
				body = listing
			}
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(body)), Request: req}, nil
		})
		if err := r.List(context.Background()); err != nil {
			mustBeClassified(t, err)
			return
		}
		if _, err := r.Resolve(""); err != nil {
			mustBeClassified(t, err)
		}
		for _, haves := range [][]object.ID{nil, {object.ParseID("2222222222222222222222222222222222222222")}} {
			want := FetchRequest{Tip: object.ParseID("1111111111111111111111111111111111111111"), Haves: haves, Shallow: haves}
			if _, err := r.Fetch(context.Background(), want, io.Discard); err != nil {
				mustBeClassified(t, err)
			}
		}
	})
}

func mustBeClassified(t *testing.T, err error) {
	t.Helper()
	switch events.ClassOf(err) {
	case events.ClassServer, events.ClassBusy, events.ClassNetwork, events.ClassNotFound, events.ClassAuth, events.ClassNoRef, events.ClassHostile, events.ClassCorrupt,
		events.ClassConfig:
	default:
		t.Fatalf("%s: %v", events.ClassOf(err), err)
	}
	if len(err.Error()) > 500 {
		t.Fatalf("an error of %d bytes", len(err.Error()))
	}
}
