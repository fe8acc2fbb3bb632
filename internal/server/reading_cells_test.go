package server_test

import (
	"context"
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

func (c otherCell) Own() string { return "eu-1" }

func (c otherCell) Of(_ context.Context, repo events.RepoPath) (server.CellReader, bool) {
	return server.CellReader{Cell: "eu-2", URL: c.at}, strings.HasPrefix(repo.String(), "acme/elsewhere")
}

func (c otherCell) IsHere(repo events.RepoPath) bool {
	return !strings.HasPrefix(repo.String(), "acme/elsewhere")
}

func (c otherCell) From(name string) (reader server.CellReader, next string, ok bool) {
	switch {
	case name <= "eu-1":
		return server.CellReader{Cell: "eu-1"}, "eu-2", true
	case name <= "eu-2":
		return server.CellReader{Cell: "eu-2", URL: c.at}, "", true
	}
	return server.CellReader{}, "", false
}

func placed(t *testing.T, at *url.URL) *library {
	t.Helper()
	l := newLibrary(t)
	l.cfg.Reading.Cells, l.cfg.Reading.CellTransport = otherCell{at}, http.DefaultTransport
	l.serve()
	return l
}

// TestRequestsGoToTheCellOfTheirRepository forwards a request with its token, body and query, and the response with its headers.
func TestRequestsGoToTheCellOfTheirRepository(t *testing.T) {
	t.Parallel()
	var got []string
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := testenv.Must(io.ReadAll(r.Body))(t)
		got = append(got, fmt.Sprint(r.Method, " ", r.URL, " ", r.Header.Get("Lockstep-Cell"), " ", r.Header["Authorization"], " ", string(body)))
		w.Header().Set("ETag", `"x"`)
		if strings.Contains(r.URL.Path, "wrong") {
			w.WriteHeader(http.StatusMisdirectedRequest)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"repo":"acme/elsewhere","git":"%s/git/acme/elsewhere.git","refs":[]}`, r.Header.Get("Lockstep-Base-Url"))
	}))
	defer other.Close()
	l := placed(t, testenv.Must(url.Parse(other.URL+"/behind"))(t))
	base := strings.TrimSuffix(l.url, "/api/v1/repos/")
	send := func(method, path, token, body string, header ...string) (int, string) {
		t.Helper()
		req := testenv.Must(http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(body)))(t)
		req.Header.Set("Authorization", "Bearer "+token)
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp := testenv.Must(http.DefaultTransport.RoundTrip(req))(t)
		defer resp.Body.Close()
		return resp.StatusCode, string(testenv.Must(io.ReadAll(resp.Body))(t))
	}
	for _, one := range []struct{ method, path, body string }{
		{"GET", "/git/acme/elsewhere.git/info/refs?service=git-upload-pack", ""},
		{"POST", "/git/acme/elsewhere.git/git-upload-pack", "want"},
		{"GET", "/api/v1/repos/acme%2Felsewhere", ""},
	} {
		status, text := send(one.method, one.path, l.docs, one.body, "Connection", "Authorization") // a proxy would drop what Connection names
		if want := `"git":"` + base + "/git/"; status != http.StatusOK || strings.HasPrefix(one.path, "/api/") && !strings.Contains(text, want) {
			t.Errorf("%s: %d %s, want %s", one.path, status, text, want)
		}
		if want := one.method + " /behind" + one.path + " eu-2 [Bearer " + l.docs + "] " + one.body; len(got) == 0 || got[len(got)-1] != want {
			t.Errorf("the other cell got %q, want %q", got, want)
		}
	}
	if status, text := send("GET", "/api/v1/repos/acme/elsewhere-wrong/refs", l.docs, ""); status != http.StatusBadGateway {
		t.Errorf("a wrong URL in the directory: %d %s, want 502", status, text)
	}
	forwarded := len(got)
	for _, one := range []struct {
		path, cell, token string
		want              int
	}{
		{"/api/v1/repos/acme/elsewhere/refs", "eu-1", l.docs, http.StatusNotFound}, // only of this cell
		{"/git/acme/widgets.git/info/refs", "eu-1", l.docs, http.StatusNotFound},
		{"/api/v1/repos", "eu-1", l.docs, http.StatusOK},
		{"/api/v1/repos", "eu-2", l.docs, http.StatusMisdirectedRequest},
		{"/git/acme/elsewhere.git/info/refs?service=git-upload-pack", "eu-2", l.docs, http.StatusMisdirectedRequest},
		{"/api/v1/repos", "eu-1", "lockstep_none", http.StatusUnauthorized},
		{"/api/v1/repos/acme/elsewhere/refs", "", "lockstep_none", http.StatusUnauthorized},
		{"/git/acme/elsewhere.git/info/refs?service=git-upload-pack", "", "lockstep_none", http.StatusUnauthorized},
		{"/api/v1/repos/acme/none/refs", "", l.docs, http.StatusNotFound},
		{"/api/v1/repos/..%2F..%2Fx/refs", "", l.docs, http.StatusNotFound},
	} {
		if status, text := send("GET", one.path, one.token, "", "Lockstep-Cell", one.cell); status != one.want {
			t.Errorf("%s for cell %q: %d %s, want %d", one.path, one.cell, status, text, one.want)
		}
		if len(got) != forwarded {
			t.Fatalf("%s: forwarded %v", one.path, got[forwarded:])
		}
	}
}

// TestListsGoThroughTheCells continues with the page of the next cell, and names one whose reader does not answer.
func TestListsGoThroughTheCells(t *testing.T) {
	t.Parallel()
	answer, status := `{"repos":[{"repo":"acme/elsewhere","git":"BASE/git/acme/elsewhere.git","refs":[]}],"next":"more"}`, http.StatusOK
	var asked []string
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Header.Get("Lockstep-Cell")+r.URL.String())
		w.WriteHeader(status)
		fmt.Fprint(w, strings.ReplaceAll(answer, "BASE", r.Header.Get("Lockstep-Base-Url")))
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
	l.watch("docs", "acme/elsewhere", "") // left behind by a move
	if got, _ := list("?limit=5"); got.Next != "eu-2:" || got.Missing != "" || slices.ContainsFunc(got.Repos, func(r server.ReadableRepo) bool { return r.Repo == "acme/elsewhere" }) {
		t.Errorf("the own cell: %+v", got)
	}
	got, _ := list("?limit=5&after=eu-2:")
	if len(got.Repos) != 1 || got.Next != "eu-2:more" || got.Repos[0].Git != strings.TrimSuffix(l.url, "/api/v1/repos/")+"/git/acme/elsewhere.git" {
		t.Errorf("the other cell: %+v", got)
	}
	answer = `{"repos":[]}`
	if got, _ := list("?limit=5&after=eu-2:more"); len(got.Repos) != 0 || got.Next != "" ||
		!slices.Equal(asked, []string{"eu-2/api/v1/repos?after=&limit=5", "eu-2/api/v1/repos?after=more&limit=5"}) {
		t.Errorf("its end: %+v, asked for %v", got, asked)
	}
	if got, _ := list("?after=eu-17:of+a+cell+that+is+gone"); got.Next != "" || len(asked) != 3 || asked[2] != "eu-2/api/v1/repos?after=" {
		t.Errorf("the cell after one that is gone: %+v, asked for %v", got, asked)
	}
	if got, status := list("?after=eu-3:of+the+last+cell"); status != http.StatusOK || got.Repos == nil || len(got.Repos) != 0 || got.Next != "" {
		t.Errorf("after the last cell, which is gone: %d %+v, want the end of the list", status, got)
	}
	for _, after := range []string{"x", "eu-1"} {
		if _, status := list("?after=" + after); status != http.StatusBadRequest {
			t.Errorf("after=%s: %d, want 400", after, status)
		}
	}
	for refusal, want := range map[int]int{400: 400, 429: 429, 503: 200, 401: 200, 500: 200, 421: 200} {
		status = refusal
		if got, status := list("?after=eu-2:"); status != want || (got.Missing == "eu-2") != (want == 200) {
			t.Errorf("the other cell answers %d: %d %+v, want %d", refusal, status, got, want)
		}
	}
	other.Close()
	if got, status := list("?after=eu-2:"); status != http.StatusOK || got.Repos == nil || got.Missing != "eu-2" || got.Next != "" {
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
