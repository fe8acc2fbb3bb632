package server_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/server"
	"lockstep/internal/testenv"
)

// otherCell has the repositories of acme/elsewhere…, at a reader.
type otherCell struct{ at *url.URL }

func (c otherCell) Of(repo events.RepoPath) (server.CellReader, bool, error) {
	return server.CellReader{Cell: "eu-2", URL: c.at}, strings.HasPrefix(repo.String(), "acme/elsewhere"), nil
}

func (c otherCell) At(index int) (reader server.CellReader, own, ok bool) {
	return server.CellReader{Cell: "eu-2", URL: c.at}, index == 0, index < 2
}

func placed(t *testing.T, at *url.URL) *library {
	t.Helper()
	l := newLibrary(t)
	l.cfg.Reading.Cells, l.cfg.Reading.CellTransport = otherCell{at}, http.DefaultTransport
	l.serve()
	return l
}

// TestRequestsGoToTheCellOfTheirRepository forwards a request with its token, body and query, and the response with its headers, at most twice.
func TestRequestsGoToTheCellOfTheirRepository(t *testing.T) {
	t.Parallel()
	var got []string // requests to the other cell
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := testenv.Must(io.ReadAll(r.Body))(t)
		got = append(got, fmt.Sprint(r.Method, " ", r.URL, " ", r.Header.Get("Authorization"), " ", r.Header.Get(server.HopsHeader), " ", string(body)))
		w.Header().Set("ETag", `"x"`)
		w.Header().Set("Content-Type", "application/x-other")
		fmt.Fprint(w, "from the other cell")
	}))
	defer other.Close()
	l := placed(t, testenv.Must(url.Parse(other.URL))(t))
	base := strings.TrimSuffix(l.url, "/api/v1/repos/")
	send := func(method, path, token, body string, hops ...string) *http.Response {
		t.Helper()
		req := testenv.Must(http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(body)))(t)
		req.Header.Set("Authorization", "Bearer "+token)
		for _, n := range hops {
			req.Header.Set(server.HopsHeader, n)
		}
		resp := testenv.Must(http.DefaultTransport.RoundTrip(req))(t)
		t.Cleanup(func() { resp.Body.Close() })
		return resp
	}
	for _, one := range []struct{ method, path, body, hops, want string }{
		{"GET", "/git/acme/elsewhere.git/info/refs?service=git-upload-pack", "", "", "1"},
		{"POST", "/git/acme/elsewhere.git/git-upload-pack", "want", "1", "2"},
	} {
		resp := send(one.method, one.path, l.docs, one.body, one.hops)
		if resp.StatusCode != http.StatusOK || resp.Header.Get("ETag") != `"x"` {
			t.Errorf("%s: %s %v", one.path, resp.Status, resp.Header)
		}
		if want := strings.TrimRight(one.method+" "+one.path+" Bearer "+l.docs+" "+one.want+" "+one.body, " "); len(got) == 0 || strings.TrimRight(got[len(got)-1], " ") != want {
			t.Errorf("the other cell got %q, want %q", got, want)
		}
	}
	forwarded := len(got)
	for name, resp := range map[string]*http.Response{
		"twice forwarded":   send("GET", "/api/v1/repos/acme/elsewhere/refs", l.docs, "", "2"),
		"an unknown token":  send("GET", "/api/v1/repos/acme/elsewhere/refs", "lockstep_none", ""),
		"Git, unknown":      send("GET", "/git/acme/elsewhere.git/info/refs?service=git-upload-pack", "lockstep_none", ""),
		"of the own cell":   send("GET", "/api/v1/repos/acme/none/refs", l.docs, ""),
		"an invalid path":   send("GET", "/api/v1/repos/..%2F..%2Fx/refs", l.docs, ""),
		"a list of the own": send("GET", "/api/v1/repos", l.docs, "", "2"),
	} {
		if len(got) != forwarded {
			t.Fatalf("%s: forwarded %v", name, got[forwarded:])
		}
		if resp.StatusCode/100 == 5 {
			t.Errorf("%s: %s", name, resp.Status)
		}
	}
}

// TestListsGoThroughTheCells continues with the page of the next cell, and names one whose reader does not answer.
func TestListsGoThroughTheCells(t *testing.T) {
	t.Parallel()
	page := `{"repos":[{"repo":"acme/elsewhere","git":"http://other/git/acme/elsewhere.git","refs":[]}],"next":"more"}`
	var asked []string
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.String())
		fmt.Fprint(w, page)
		page = `{"repos":[]}`
	}))
	l := placed(t, testenv.Must(url.Parse(other.URL))(t))
	type listing struct {
		Repos   []server.ReadableRepo `json:"repos"`
		Next    string                `json:"next"`
		Missing string                `json:"missing_cell"`
	}
	list := func(query string) (got listing, status int) {
		t.Helper()
		req := testenv.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, strings.TrimSuffix(l.url, "/")+query, nil))(t)
		req.Header.Set("Authorization", "Bearer "+l.docs)
		resp := testenv.Must(http.DefaultClient.Do(req))(t)
		defer resp.Body.Close()
		_ = json.NewDecoder(resp.Body).Decode(&got)
		return got, resp.StatusCode
	}
	if got, _ := list("?limit=5"); got.Next != "1:" || got.Missing != "" {
		t.Errorf("the own cell: %+v", got)
	}
	got, _ := list("?limit=5&after=1:")
	if len(got.Repos) != 1 || got.Next != "1:more" || got.Repos[0].Git != strings.TrimSuffix(l.url, "/api/v1/repos/")+"/git/acme/elsewhere.git" {
		t.Errorf("the other cell: %+v", got)
	}
	if got, _ := list("?limit=5&after=1:more"); len(got.Repos) != 0 || got.Next != "" || !slices.Equal(asked, []string{"/api/v1/repos?after=&limit=5", "/api/v1/repos?after=more&limit=5"}) {
		t.Errorf("its end: %+v, asked for %v", got, asked)
	}
	for _, after := range []string{"x", "2:", "-1:", "1"} {
		if _, status := list("?after=" + after); status != http.StatusBadRequest {
			t.Errorf("after=%s: %d, want 400", after, status)
		}
	}
	other.Close()
	if got, status := list("?after=1:"); status != http.StatusOK || got.Repos == nil || got.Missing != "eu-2" || got.Next != "" {
		t.Errorf("a cell without a reader: %d %+v", status, got)
	}
}

// TestCellWithoutReader calls every endpoint that may return 502.
func TestCellWithoutReader(t *testing.T) {
	t.Parallel()
	l := placed(t, nil)
	base := strings.TrimSuffix(l.url, "/api/v1/repos/")
	n := 0
	for path, item := range document().Paths.Map() {
		for method, op := range item.Operations() {
			if op.Responses.Status(http.StatusBadGateway) == nil {
				continue
			}
			n++
			target := strings.NewReplacer("{repo}/", "acme/elsewhere.git/", "{repo}", "acme%2Felsewhere").Replace(path)
			if !strings.HasPrefix(path, "/git/") {
				target = strings.NewReplacer("{repo}", "acme%2Felsewhere", "{path}", "README").Replace(path)
			}
			req := testenv.Must(http.NewRequestWithContext(t.Context(), method, base+target, nil))(t)
			req.Header.Set("Authorization", "Bearer "+l.docs)
			resp := testenv.Must(http.DefaultTransport.RoundTrip(req))(t)
			text := testenv.Must(io.ReadAll(resp.Body))(t)
			resp.Body.Close()
			if resp.StatusCode != http.StatusBadGateway || resp.Header.Get("Retry-After") != "" || !strings.Contains(string(text), "in cell eu-2, whose reader does not answer") {
				t.Errorf("%s %s: %s %s", method, target, resp.Status, text)
			}
		}
	}
	if n != 8 {
		t.Errorf("%d endpoints return 502, want 8", n)
	}
}
