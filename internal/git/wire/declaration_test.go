package wire

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/git/object"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// listOfOne is a list of refs under protocol 0, with one branch.
func listOfOne(head string) string {
	var lines strings.Builder
	for _, line := range []string{
		head + " HEAD\x00side-band-64k ofs-delta shallow symref=HEAD:refs/heads/main agent=git/2.40\n",
		head + " refs/heads/main\n",
	} {
		fmt.Fprintf(&lines, "%04x%s", len(line)+4, line)
	}
	return lines.String() + "0000"
}

const aCommit = "1111111111111111111111111111111111111111"

// fetchOnce lists the refs of a remote and fetches its branch.
func fetchOnce(t *testing.T, url string, auth Auth) error {
	t.Helper()
	n := newNetwork(t)
	session, err := n.DialAndList(t.Context(), url, auth, false, Limits{Timeout: time.Minute, MaxPackBytes: 1 << 20}, "refs/heads/")
	if err != nil {
		return err
	}
	defer session.Close()
	_, err = session.Fetch(t.Context(), FetchRequest{Tip: object.ParseID(aCommit), Depth: 1}, io.Discard)
	return err
}

// TestServerEndsBeforeRequestOverSSH reports why a server ended, whether or not it has ended already when the request is written.
func TestServerEndsBeforeRequestOverSSH(t *testing.T) {
	git, _ := startGit(t)
	for name, tc := range map[string]struct {
		answer gitserver.SSHAnswer
		text   string
		class  events.Class
	}{
		"nothing more":  {gitserver.SSHAnswer{}, "empty response", events.ClassServer},
		"an exit code":  {gitserver.SSHAnswer{Status: 128}, "exit", events.ClassServer},
		"a refusal":     {gitserver.SSHAnswer{Status: 128, Stderr: "fatal: the quota of this repository is exceeded\n"}, "", events.ClassServer},
		"a lost server": {gitserver.SSHAnswer{Drop: true}, "", events.ClassNetwork},
	} {
		t.Run(name, func(t *testing.T) {
			server := testenv.Must(git.StartSSH())(t)
			defer server.Close()
			tc.answer.Stdout = listOfOne(aCommit)
			server.Answer(&tc.answer)
			seen := map[string]int{}
			for range 40 {
				err := fetchOnce(t, server.URL(widgets), Auth{SSHKey: server.ClientKey, KnownHosts: server.KnownHosts()})
				seen[fmt.Sprintf("%s: %v", events.ClassOf(err), err)]++
				if !strings.Contains(fmt.Sprint(err), tc.text) || events.ClassOf(err) != tc.class {
					t.Errorf("got %s (%v), want %s with %q", events.ClassOf(err), err, tc.class, tc.text)
				}
			}
			if len(seen) > 1 && !tc.answer.Drop { // during the handshake it has another text
				t.Errorf("not always the same error: %v", seen)
			}
		})
	}
}

// TestClosedIdleConnection fetches from a server that closes the connection of the list of refs when the next request comes on it, or sends
// more on it than it has declared, so that it is closed here. If the request is sent before that is seen, the rest looks like its response,
// which is not HTTP: then the attempt fails, and can be repeated.
func TestClosedIdleConnection(t *testing.T) {
	for name, surplus := range map[string]string{"closed": "", "more than declared": strings.Repeat("surplus", 100)} {
		t.Run(name, func(t *testing.T) {
			listener := testenv.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
			defer listener.Close()
			var lists, packs atomic.Int64
			go func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					go serveOnce(conn, surplus, &lists, &packs)
				}
			}()
			failed := int64(0)
			for range 40 {
				err := fetchOnce(t, "http://"+listener.Addr().String()+"/"+widgets, Auth{})
				switch {
				case err == nil:
				case surplus != "" && events.ClassOf(err) == events.ClassNetwork && events.DispositionOf(err) == events.Retryable:
					failed++
				default:
					t.Errorf("got %s: %v", events.ClassOf(err), err)
				}
			}
			if lists.Load() != 40 || packs.Load() != 40-failed || failed > 20 {
				t.Errorf("%d lists and %d packs, %d failed, want 40 of each", lists.Load(), packs.Load(), failed)
			}
		})
	}
}

// serveOnce answers the first request on a connection, a list of refs or a pack, and closes the connection at the second.
func serveOnce(conn net.Conn, surplus string, lists, packs *atomic.Int64) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	req, err := http.ReadRequest(in)
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, req.Body)
	body, kind := "001e# service=git-upload-pack\n0000"+listOfOne(aCommit), "advertisement"
	if req.Method == http.MethodPost {
		body, kind = "0034shallow "+aCommit+"0000"+"0008NAK\n"+"0009\x01PACK"+"0000", "result"
		packs.Add(1)
	} else {
		lists.Add(1)
	}
	fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/x-git-upload-pack-%s\r\nContent-Length: %d\r\n\r\n%s%s", kind, len(body), body, surplus)
	_, _ = http.ReadRequest(in)
}
