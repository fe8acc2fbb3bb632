package volume

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"lockstep/events"
	"lockstep/internal/git/wire"
	"lockstep/internal/gitserver"
	"lockstep/internal/testenv"
)

// forgeServer answers as a hosted forge does: with the capabilities recorded from it, and as strictly. It speaks protocol
// version 0 only, over HTTP with Basic authentication. Git's own upload-pack makes the packs.
type forgeServer struct {
	path         string // of the clone URL
	capabilities string // %s is the default branch
	peels        bool   // annotated tags are peeled
	refusal      string // for a request without multi_ack; empty accepts it

	dir string // the bare repository
}

// azureDevOps returns a server like dev.azure.com. Capabilities and refusal: go-git issues 64 and 613, and measurements by
// ConfigButler/gitops-reverser (docs/facts/azure-devops-multi-ack-requirement.md). There is neither ofs-delta nor agent.
func azureDevOps(dir string) *forgeServer {
	return &forgeServer{
		path: "/acme/My%20Shop/_git/widgets", dir: dir, peels: true,
		capabilities: "multi_ack thin-pack side-band side-band-64k no-progress multi_ack_detailed no-done shallow allow-tip-sha1-in-want filter symref=HEAD:%s",
		refusal:      "TF401041: The Git protocol sent is not as expected (Clients must support multi-ack.).",
	}
}

// codeCommit returns a server like git-codecommit.{region}.amazonaws.com. Capabilities: isomorphic-git issue 199. There is
// neither symref nor ofs-delta nor no-progress, and the URL has no ".git".
func codeCommit(dir string) *forgeServer {
	return &forgeServer{
		path: "/v1/repos/widgets", dir: dir,
		capabilities: "multi_ack_detailed shallow side-band-64k thin-pack allow-tip-sha1-in-want allow-reachable-sha1-in-want",
	}
}

var forgeAuth = wire.Auth{Username: "bot", Password: "personal-access-token"}

func (s *forgeServer) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if user, password, _ := r.BasicAuth(); user != forgeAuth.Username || password != forgeAuth.Password {
		rw.Header().Set("WWW-Authenticate", `Basic realm="forge"`)
		http.Error(rw, "log in", http.StatusUnauthorized)
		return
	}
	var err error
	switch r.Method + " " + r.URL.RequestURI() {
	case "GET " + s.path + "/info/refs?service=git-upload-pack":
		rw.Header().Set("Content-Type", "application/x-git-upload-pack-advertisement")
		err = s.advertise(rw)
	case "POST " + s.path + "/git-upload-pack":
		err = s.uploadPack(rw, r)
	default:
		http.NotFound(rw, r)
	}
	if err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest)
	}
}

func pktLine(format string, args ...any) string {
	text := fmt.Sprintf(format, args...)
	return fmt.Sprintf("%04x%s", len(text)+4, text)
}

// advertise lists HEAD, the refs and, if the server peels tags, their commits.
func (s *forgeServer) advertise(w io.Writer) error {
	head, err := s.git("", "symbolic-ref", "HEAD")
	if err != nil {
		return err
	}
	head = strings.TrimSpace(head)
	refs, err := s.git("", "for-each-ref", "--format=%(objectname) %(refname) %(*objectname)")
	if err != nil {
		return err
	}
	tip, err := s.git("", "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	capabilities := s.capabilities
	if strings.Contains(capabilities, "%s") {
		capabilities = fmt.Sprintf(capabilities, head)
	}
	text := pktLine("# service=git-upload-pack\n") + "0000" + pktLine("%s HEAD\x00%s\n", strings.TrimSpace(tip), capabilities)
	for line := range strings.Lines(refs) {
		f := strings.Fields(line)
		text += pktLine("%s %s\n", f[0], f[1])
		if len(f) == 3 && s.peels {
			text += pktLine("%s %s^{}\n", f[2], f[1])
		}
	}
	_, err = io.WriteString(w, text+"0000")
	return err
}

func (s *forgeServer) git(stdin string, args ...string) (string, error) {
	return gitserver.Git(context.Background(), s.dir, stdin, args...)
}

// packRequest is a parsed upload-pack request.
type packRequest struct {
	capabilities           []string
	wants, shallows, haves []string
	deepen                 string
	round, done            bool // ends a round of haves, or the negotiation
}

// parsePackRequest accepts wants, then shallows, then a depth, a flush, haves, and the end. Forges refuse another order.
func parsePackRequest(body io.Reader) (req packRequest, err error) {
	rest, err := io.ReadAll(body)
	if err != nil {
		return req, err
	}
	order, last := []string{"want", "shallow", "deepen", "", "have", "done"}, 0
	for len(rest) > 0 {
		n, err := strconv.ParseUint(string(rest[:min(4, len(rest))]), 16, 16)
		if err != nil || int(n) > len(rest) || n > 0 && n < 5 {
			return req, fmt.Errorf("not a pkt-line: %.20q", rest)
		}
		line := strings.TrimSuffix(string(rest[min(4, n):n]), "\n")
		rest = rest[max(4, n):]
		kind, value, _ := strings.Cut(line, " ")
		at := slices.Index(order, kind)
		if kind == "" && last >= 3 {
			at, req.round = 4, true
		}
		if at < last {
			return req, fmt.Errorf("%q is out of order", line)
		}
		last = at
		switch kind {
		case "want":
			id, capabilities, _ := strings.Cut(value, " ")
			if len(req.wants) == 0 {
				req.capabilities = strings.Fields(capabilities)
			}
			req.wants = append(req.wants, id)
		case "shallow":
			req.shallows = append(req.shallows, value)
		case "deepen":
			req.deepen = value
		case "have":
			req.haves = append(req.haves, value)
		case "done":
			req.done = true
		}
	}
	return req, nil
}

// check returns an error for what the forge, or a server that keeps to the protocol, refuses.
func (s *forgeServer) check(req packRequest) error {
	for _, c := range req.capabilities {
		if !slices.Contains(strings.Fields(s.capabilities), c) {
			return fmt.Errorf("capability %s was not offered", c)
		}
	}
	if s.refusal != "" && !slices.Contains(req.capabilities, "multi_ack") && !slices.Contains(req.capabilities, "multi_ack_detailed") {
		return fmt.Errorf("%s", s.refusal)
	}
	return nil
}

func (s *forgeServer) uploadPack(rw http.ResponseWriter, r *http.Request) error {
	req, err := parsePackRequest(r.Body)
	if err == nil && len(req.wants) > 0 {
		err = s.check(req)
	}
	if err != nil {
		return err
	}
	rw.Header().Set("Content-Type", "application/x-git-upload-pack-result")
	if len(req.wants) == 0 { // Git asks in this way whether its credential is accepted
		return nil
	}
	reachable, err := s.git("", "rev-list", "--all", "--objects", "--no-object-names")
	if err != nil {
		return err
	}
	for _, want := range req.wants {
		if !strings.Contains(reachable, want) { // as JGit says
			_, err := io.WriteString(rw, pktLine("ERR want %s not valid\n", want))
			return err
		}
	}
	prologue, pack, err := s.runGit(req)
	if err != nil {
		return err
	}
	common, last := "", "NAK\n"
	for _, have := range req.haves {
		if _, err := s.git("", "cat-file", "-e", have); err == nil {
			common += pktLine("ACK %s common\n", have)
			last = "ACK " + have + "\n"
		}
	}
	switch {
	case req.done:
		common += pktLine("%s", last)
	case req.round: // the client continues with another request
		common, pack = common+pktLine("NAK\n"), ""
	default:
		pack = ""
	}
	_, err = io.WriteString(rw, prologue+common+pack)
	return err
}

// runGit lets Git answer the request, without acknowledgements. It returns the shallow section and the side-band.
func (s *forgeServer) runGit(req packRequest) (prologue, pack string, err error) {
	var in strings.Builder
	for i, want := range req.wants {
		if i == 0 {
			want += " side-band-64k thin-pack no-progress"
		}
		in.WriteString(pktLine("want %s\n", want))
	}
	for _, shallow := range req.shallows {
		in.WriteString(pktLine("shallow %s\n", shallow))
	}
	if req.deepen != "" {
		in.WriteString(pktLine("deepen %s\n", req.deepen))
	}
	in.WriteString("0000")
	for _, have := range req.haves {
		in.WriteString(pktLine("have %s\n", have))
	}
	in.WriteString(pktLine("done\n"))
	cmd := exec.Command("git", "-c", "uploadpack.allowAnySHA1InWant=true", "upload-pack", "--stateless-rpc", s.dir)
	var stderr bytes.Buffer
	cmd.Env, cmd.Stdin, cmd.Stderr = append(os.Environ(), "GIT_PROTOCOL=", "GIT_CONFIG_NOSYSTEM=1"), strings.NewReader(in.String()), &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", "", fmt.Errorf("git upload-pack: %w: %s", err, stderr.String())
	}
	rest := string(out)
	next := func() (line string) {
		n, err := strconv.ParseUint(rest[:4], 16, 16)
		if err != nil {
			return ""
		}
		line, rest = rest[:max(4, n)], rest[max(4, n):]
		return line
	}
	for req.deepen != "" && !strings.HasSuffix(prologue, "0000") {
		prologue += next()
	}
	next() // Git's own acknowledgement
	return prologue, rest, nil
}

// TestHostedForges syncs from imitations of Azure DevOps and AWS CodeCommit. Git itself clones from them and fetches, which
// shows that the imitations keep to the protocol.
func TestHostedForges(t *testing.T) {
	onlySHA1(t)
	t.Parallel()
	for name, forge := range map[string]func(string) *forgeServer{"Azure DevOps": azureDevOps, "CodeCommit": codeCommit} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			first := w.create(map[string]string{"a": "1", "dir/b": strings.Repeat("many lines\n", 1000)})
			url := w.startForge(forge(w.git.Dir(widgets)))
			clone := w.gitClone(url)
			sync := func(ref string, depth events.Depth) SyncResult {
				t.Helper()
				req := w.request(ref)
				req.URL, req.Auth, req.Depth = url, forgeAuth, depth
				return testenv.Must(w.volume.Sync(t.Context(), req))(t)
			}
			if res := sync("", 1); res.After != first || res.Ref.String() != "refs/heads/main" {
				t.Errorf("got %+v", res)
			}
			w.mustBeSound(widgets, first)

			second := w.push(map[string]string{"dir/b": strings.Repeat("many lines\n", 1000) + "and one"})
			if res := sync("", 1); len(res.Files) != 1 || res.Full {
				t.Errorf("an increment: got %+v", res)
			}
			w.mustBeSound(widgets, second)

			topic := w.commit("topic", gitserver.Edit{Parent: second, Write: map[string]string{"d": "4"}})
			w.mustBeSound(sync("topic", 1).Path, topic)
			testenv.Must(0, w.git.Tag(t.Context(), widgets, "v1", first))(t)
			w.mustBeSound(sync("refs/tags/v1", 1).Path, first)

			forced := w.commit(gitserver.Main, gitserver.Edit{Parent: first, Write: map[string]string{"c": "3"}})
			testenv.Must(0, w.git.DeleteRef(t.Context(), widgets, "refs/heads/topic"))(t)
			testenv.Must(w.git.Git(t.Context(), widgets, "", "gc", "--quiet", "--prune=now"))(t) // of five haves, the server knows one
			sync("", 1)
			w.mustBeSound(widgets, forced)

			sync("", events.DepthFull)
			w.mustShow(widgets, 2)

			hash := sync(first, 1) // reachable, and no ref is at it
			w.mustBeSound(hash.Path, first)
			if want := widgets + "@" + first; hash.Path != want {
				t.Errorf("published at %s, want %s", hash.Path, want)
			}
			req := w.request(second) // of no branch any more
			req.URL, req.Auth = url, forgeAuth
			_, err := w.volume.Sync(t.Context(), req)
			testenv.MustFail(t, err, events.ClassNoRef, events.Permanent)
			if got := testenv.Must(gitserver.Git(t.Context(), clone, "", "fetch", "--quiet", "origin", "main"))(t); got != "" {
				t.Errorf("git fetch: %s", got)
			}
		})
	}
}

// TestAzureRefusesClientsWithoutMultiAck shows that the imitation refuses what dev.azure.com refuses.
func TestAzureRefusesClientsWithoutMultiAck(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	commit := w.create(map[string]string{"a": "1"})
	url := w.startForge(azureDevOps(w.git.Dir(widgets)))
	for capabilities, want := range map[string]int{
		"side-band-64k": http.StatusBadRequest, "multi_ack side-band-64k": http.StatusOK, "multi_ack_detailed": http.StatusOK,
		"multi_ack ofs-delta": http.StatusBadRequest, // not offered
	} {
		body := pktLine("want %s %s\n", commit, capabilities) + "0000" + pktLine("done\n")
		req := testenv.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/git-upload-pack", strings.NewReader(body)))(t)
		req.SetBasicAuth(forgeAuth.Username, forgeAuth.Password)
		res := testenv.Must(http.DefaultClient.Do(req))(t)
		_ = res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: HTTP %d, want %d", capabilities, res.StatusCode, want)
		}
	}
}

func (w *world) startForge(s *forgeServer) (url string) {
	server := httptest.NewServer(s)
	w.t.Cleanup(server.Close)
	return server.URL + s.path
}

// gitClone clones with Git over protocol version 0.
func (w *world) gitClone(url string) (dir string) {
	dir = filepath.Join(w.t.TempDir(), "clone")
	basic := base64.StdEncoding.EncodeToString([]byte(forgeAuth.Username + ":" + forgeAuth.Password))
	testenv.Must(gitserver.Git(w.t.Context(), w.t.TempDir(), "", "clone", "--quiet", "--depth=1", "--no-single-branch",
		"--config", "protocol.version=0", "--config", "http.extraHeader=Authorization: Basic "+basic, url, dir))(w.t)
	return dir
}
