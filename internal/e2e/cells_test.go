package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/git/wire"
	"lockstep/internal/hosts"
	"lockstep/internal/proctest"
	"lockstep/internal/redistest"
	"lockstep/internal/testenv"
	"lockstep/locking"
)

// twoCells adds two cells to the directory, whose keys are on different masters of the cluster, and returns them. The directory is on the
// third one.
func twoCells(t *testing.T, client redis.UniversalClient) (*cells.Directory, [2]cells.Cell) {
	t.Helper()
	directory := proctest.Must(cells.OpenOrNew(t.Context(), client))(t)
	var two [2]cells.Cell
	for i, name := range []string{"eu-1", "eu-2"} {
		two[i] = proctest.Must(directory.Add(t.Context(), name, cellPrefixes[i], 0))(t)
	}
	proctest.Must(0, directory.Settle(t.Context(), directory.Epoch()))(t)
	return directory, two
}

// cellPrefixes are on different masters of redistest.StartCluster, and so is {dir}: slots 3,000, 9,000 and 15,000 or so. A test checks it.
var cellPrefixes = [2]events.Namespace{"lockstep:{eu-1}:", "lockstep:{eu-2}:"}

// masters returns the index of the node that has each key.
func masters(t *testing.T, client redis.UniversalClient, keys ...string) []int64 {
	t.Helper()
	nodes := make([]int64, len(keys))
	for i, key := range keys {
		nodes[i] = proctest.Must(client.ClusterKeySlot(t.Context(), key).Result())(t) * 3 / 16384
	}
	return nodes
}

// TestRawEntriesAreForwardedOnceDespiteKills adds entries of both cells to the stream of one, and kills its workers again and again while
// they forward.
func TestRawEntriesAreForwardedOnceDespiteKills(t *testing.T) {
	t.Parallel()
	ctx, git, cluster := t.Context(), proctest.StartGit(t), redistest.StartCluster(t)
	client := redistest.Open(t, cluster.URL())
	directory, two := twoCells(t, client)
	repos := testenv.Form(10, 40)
	const perRepo = 10
	elsewhere := 0
	for i := range repos {
		name := fmt.Sprintf("acme/repo-%d", i)
		proctest.Must(git.Create(ctx, name, map[string]string{"README": name}))(t)
		if directory.Place(proctest.Must(events.ParseRepoPath(name))(t)).Name == "eu-2" {
			elsewhere += perRepo
		}
	}
	ids := map[string]bool{}
	for n := range repos * perRepo {
		name := fmt.Sprintf("acme/repo-%d", n%repos)
		values := []string{"repo", name, "url", git.URL(name), "ref", "refs/heads/main"}
		ids[proctest.Must(client.XAdd(ctx, &redis.XAddArgs{Stream: two[0].Prefix.Changes(), Values: values}).Result())(t)] = true
	}
	serve := func(cell, root string) *proctest.Process {
		return proctest.Start(t, "serve", "--redis", cluster.URL(), "--cell", cell, "--root", root, "--lease", "1s", "--lock-wait", "5s", "--log-level", "warn")
	}
	root := t.TempDir()
	for range testenv.Form(6, 25) {
		p := serve("eu-1", root)
		more := 1 + rand.Int64N(4)
		before := client.XLen(ctx, two[1].Prefix.Changes()).Val()
		proctest.Eventually(t, func() bool {
			n := client.XLen(ctx, two[1].Prefix.Changes()).Val()
			return n >= before+more || n == int64(elsewhere)
		}, "changes are forwarded")
		p.Kill()
	}
	serve("eu-1", root)
	serve("eu-2", t.TempDir())
	settled := map[string]int{}
	proctest.Eventually(t, func() bool {
		clear(settled)
		for _, cell := range two {
			for _, entry := range client.XRange(ctx, cell.Prefix.Results(), "-", "+").Val() {
				for _, id := range proctest.DecodeResult(t, entry).Deliveries {
					settled[id]++
				}
			}
		}
		return len(settled) >= len(ids)
	}, "all changes have results")
	for id, n := range settled {
		if n != 1 || !ids[id] {
			t.Errorf("change %s has %d results", id, n)
		}
	}
	if n := client.XLen(ctx, two[1].Prefix.Changes()).Val(); n != int64(elsewhere) {
		t.Errorf("%d changes in the other cell, want %d", n, elsewhere)
	}
}

// TestListsNameTheCellThatIsStopped stops the Redis of one cell, by killing it or by suspending it.
func TestListsNameTheCellThatIsStopped(t *testing.T) {
	t.Parallel()
	ctx, cluster := t.Context(), redistest.StartCluster(t)
	for _, node := range cluster.Nodes {
		proctest.Must(0, node.Client().ConfigSet(ctx, "cluster-require-full-coverage", "no").Err())(t)
	}
	client := redistest.Open(t, cluster.URL())
	twoCells(t, client)
	nodes := masters(t, client, "lockstep:{dir}:cells", string(cellPrefixes[0]), string(cellPrefixes[1]))
	if nodes[0] == nodes[1] || nodes[1] == nodes[2] || nodes[0] == nodes[2] {
		t.Fatalf("the directory and the cells are on the masters %v, want three", nodes)
	}
	git := proctest.StartGit(t)
	env := []string{"LOCKSTEP_REDIS=" + cluster.URL(), "LOCKSTEP_CELL=all"}
	for i := range 8 {
		name := fmt.Sprintf("acme/repo-%d", i)
		if out, errs, code := proctest.RunLockstep(t, env, "watch", "add", git.URL(name), "--app", "docs", "--no-check"); code != 0 {
			t.Fatalf("%s%s", out, errs)
		}
	}
	created, errs, code := proctest.RunLockstep(t, env, "tokens", "create", "--app", "docs", "--json")
	var token struct{ ID string }
	if err := json.Unmarshal([]byte(created), &token); err != nil || code != 0 {
		t.Fatal(err, errs)
	}
	limiter := proctest.Must(hosts.New(hosts.Config{Redis: client, Prefix: "lockstep:{dir}:"}))(t)
	job := limiter.Job("acme/repo-1", false)
	proctest.Must(job.With("").Acquire(ctx, "git.example.com"))(t)(wire.Answer{Status: 429, Header: http.Header{"Retry-After": {"600"}}})
	job.Leave(ctx)
	if out, errs, code := proctest.RunLockstep(t, env, "status"); code != 0 || strings.Count(out, "\ngit.example.com") != 1 || !strings.Contains(out, "cell     eu-2") {
		t.Errorf("status: exit code %d\n%s%s", code, out, errs)
	}
	cluster.Nodes[nodes[2]].Stop()
	backup := filepath.Join(t.TempDir(), "lockstep.export")
	began := time.Now()
	if out, errs, code := proctest.RunLockstep(t, env, "export", backup); code == 0 || !strings.Contains(errs, "cell eu-2") || strings.Contains(errs, "eu-1") || time.Since(began) > margin() {
		t.Errorf("export without a cell: exit code %d after %v\n%s%s", code, time.Since(began), out, errs)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(backup), "*")); len(left) > 0 {
		t.Errorf("an export that failed left %v", left)
	}
	if out, errs, code := proctest.RunLockstep(t, env, "export", "--cell", "eu-1", backup); code != 0 {
		t.Errorf("export of the other cell: exit code %d\n%s%s", code, out, errs)
	}
	for _, args := range [][]string{{"status"}, {"repos", "ls"}, {"dead", "ls"}, {"watch", "ls"}, {"locks", "ls"}, {"dead", "retry", "--all"}, {"dead", "show", "5-0"}, {"tokens", "rm", token.ID}} {
		began := time.Now()
		out, errs, code := proctest.RunLockstep(t, env, args...)
		took := time.Since(began)
		if code != 1 || !strings.Contains(errs, "no answer from cell eu-2") || strings.Contains(errs, "eu-1") {
			t.Errorf("lockstep %s: exit code %d\n%s%s", strings.Join(args, " "), code, out, errs)
		}
		if took > margin() {
			t.Errorf("lockstep %s took %v", strings.Join(args, " "), took)
		}
		t.Logf("lockstep %s: %v", strings.Join(args, " "), took)
		if args[0] == "watch" && args[1] == "ls" && !strings.Contains(out, "acme/repo-") {
			t.Errorf("no watches of the other cell:\n%s", out)
		}
	}
	file := filepath.Join(t.TempDir(), "watches.yaml")
	if out, errs, code := proctest.RunLockstep(t, env, "tokens", "ls", "-q"); code != 0 || out != "" {
		t.Errorf("the removed token is still there: exit code %d\n%s%s", code, out, errs)
	}
	out, errs, code := proctest.RunLockstep(t, env, "watch", "export", "--cell", "eu-1")
	proctest.Must(0, os.WriteFile(file, []byte(out), 0o600))(t)
	if code != 0 {
		t.Fatal(errs)
	}
	if out, errs, code := proctest.RunLockstep(t, env, "watch", "import", "--prune", file); code != 1 || !strings.Contains(errs, "was not imported: no answer from cell eu-2") {
		t.Errorf("an import that prunes: exit code %d\n%s%s", code, out, errs)
	}
}

// TestReceiverPlacesInAllCells sends webhooks and requests about repositories of both cells to the receiver of one, while the other cell's
// Redis is there, is stopped, and is back.
func TestReceiverPlacesInAllCells(t *testing.T) {
	t.Parallel()
	ctx, cluster := t.Context(), redistest.StartCluster(t)
	for _, node := range cluster.Nodes {
		proctest.Must(0, node.Client().ConfigSet(ctx, "cluster-require-full-coverage", "no").Err())(t)
	}
	client := redistest.Open(t, cluster.URL())
	directory, two := twoCells(t, client)
	const git = "https://example.com/"
	names := map[string]string{} // a repository of each cell
	for i := 0; len(names) < 2; i++ {
		name := fmt.Sprintf("acme/repo-%d", i)
		names[directory.Place(proctest.Must(events.ParseRepoPath(name))(t)).Name] = name
	}
	for _, cell := range two {
		watchURL(t, client, cell.Prefix, git+names[cell.Name]+".git")
	}
	for _, cell := range two {
		repo := proctest.Must(events.ParseRepoPath(names[cell.Name]))(t)
		proctest.Must(0, client.HSet(ctx, cell.Prefix.Repo(repo), "repo", repo.String(), "head:refs/heads/main", strings.Repeat("a", 40)).Err())(t)
	}
	dir := t.TempDir()
	p := proctest.Start(t, "serve", "--cell", "eu-1", "--roles", "receiver", "--listen", "127.0.0.1:0", "--redis", cluster.URL(),
		"--hooks", writeHooks(t, dir), "--spool", filepath.Join(dir, "spool"))
	addr := p.ListenAddress("listening")
	changes := func(cell cells.Cell, id string) int {
		n := 0
		for _, entry := range client.XRange(ctx, cell.Prefix.Changes(), "-", "+").Val() {
			payload, _ := entry.Values["payload"].(string)
			if c, err := events.ParseChange([]byte(payload)); err == nil && c.ID == id {
				n++
			}
		}
		return n
	}
	push := func(id, cell, how string) {
		t.Helper()
		if status, answer := sendPushOf(t, addr, id, names[cell], git+names[cell]+".git"); status != http.StatusAccepted || !strings.Contains(answer, how) {
			t.Errorf("%s: %d %s, want 202 with %s", id, status, answer, how)
		}
	}
	for i, cell := range two {
		id := "before-" + cell.Name
		push(id, cell.Name, `"accepted":1`)
		if here, there := changes(cell, "hub/"+id+"/0"), changes(two[1-i], "hub/"+id+"/0"); here != 1 || there != 0 {
			t.Errorf("%s: %d changes in its cell, %d in the other", id, here, there)
		}
		body := fmt.Sprintf(`{"id":"api-%s","repo":%q,"url":"%s%s.git"}`, cell.Name, names[cell.Name], git, names[cell.Name])
		resp := proctest.Must(http.Post("http://"+addr+"/api/v1/changes", "application/json", strings.NewReader(body)))(t)
		resp.Body.Close()
		if resp.StatusCode != http.StatusAccepted || changes(cell, "api-"+cell.Name) != 1 {
			t.Errorf("POST: %s, %d changes in the cell", resp.Status, changes(cell, "api-"+cell.Name))
		}
		if status, text := getStatus(t, "http://"+addr+resp.Header.Get("Location")); status != http.StatusAccepted || !strings.Contains(text, "queued") {
			t.Errorf("GET %s: %d %s", resp.Header.Get("Location"), status, text)
		}
	}
	if _, text := getStatus(t, "http://"+addr+"/api/v1/watches"); !strings.Contains(text, names["eu-1"]) || !strings.Contains(text, `"next":"1:"`) {
		t.Errorf("the first page of watches is %s", text)
	}
	if _, text := getStatus(t, "http://"+addr+"/api/v1/watches?after=1:"); !strings.Contains(text, names["eu-2"]) || strings.Contains(text, "next") {
		t.Errorf("the second page of watches is %s", text)
	}
	letter := func(cell cells.Cell, id string) {
		values := []string{"reason", "malformed", "error", "none", "attempts", "1", "stream", cell.Prefix.Changes(), "group", "workers", "entry", "1-1",
			"consumer", "w1", "at", "1795223511284", "original:repo", "acme/none"}
		proctest.Must(client.XAdd(ctx, &redis.XAddArgs{Stream: cell.Prefix.Dead(), ID: id, Values: values}).Result())(t)
	}
	letter(two[0], "5-1")
	letter(two[1], "5-1")
	letter(two[1], "6-1")
	locker := proctest.Must(locking.New(locking.Config{Redis: client, Prefix: two[1].Prefix.Locks()}))(t)
	lease := proctest.Must(locker.Acquire(ctx, locking.Request{Key: "acme/held"}))(t)
	defer func() { _ = lease.Release(ctx) }()
	for path, want := range map[string][2]string{
		"/api/v1/dead":                 {`200`, `"cell":"eu-1".*"next":"1:"`},
		"/api/v1/dead?after=1:":        {`200`, `"id":"6-1","cell":"eu-2".*"id":"5-1","cell":"eu-2"`},
		"/api/v1/dead?after=x":         {`400`, ``},
		"/api/v1/dead/6-1":             {`200`, `"cell":"eu-2"`},
		"/api/v1/dead/5-1":             {`409`, `\?cell=`},
		"/api/v1/dead/5-1?cell=eu-2":   {`200`, `"cell":"eu-2"`},
		"/api/v1/dead/5-1?cell=eu-9":   {`404`, ``},
		"/api/v1/dead/7-1":             {`404`, ``},
		"/api/v1/dead/7-1?cell=eu-1":   {`404`, ``},
		"/api/v1/dead/seven?cell=eu-1": {`400`, ``},
		"/api/v1/locks":                {`200`, `{"locks":\[{"repo":"acme/held","cell":"eu-2",`},
	} {
		if status, text := getStatus(t, "http://"+addr+path); fmt.Sprint(status) != want[0] || !regexp.MustCompile(want[1]).MatchString(text) {
			t.Errorf("GET %s: %d %s, want %s", path, status, text, want)
		}
	}
	for path, want := range map[string]string{
		"/dashboard/repos":   `(?s)>` + names["eu-1"] + `<.*>` + names["eu-2"] + `<|>` + names["eu-2"] + `<.*>` + names["eu-1"] + `<`,
		"/dashboard/watches": `(?s)>` + names["eu-1"] + `<.*>` + names["eu-2"] + `<`,
		"/dashboard/dead":    `(?s)<td data-l="Cell">eu-1<.*letter\?cell=eu-2&amp;id=6-1.*letter\?cell=eu-2&amp;id=5-1`,
		"/dashboard/leases":  `(?s)>acme/held<.*<td data-l="Cell">eu-2<`,
		fmt.Sprintf("/dashboard/leases/release?repo=acme/held&fence=%d&cell=eu-2", lease.Fence()): `Release the lease on acme/held\?(?s:.*)name="cell" value="eu-2"`,
		fmt.Sprintf("/dashboard/leases/release?repo=acme/held&fence=%d&cell=eu-9", lease.Fence()): `cell &#34;eu-9&#34;: no such cell`,
		"/dashboard/repo?repo=" + names["eu-2"]:                                                   `<dt>Cell</dt><dd>eu-2</dd>`,
		"/dashboard/repo?repo=" + names["eu-1"]:                                                   `(?s)<dt>Remote</dt>`,
		"/dashboard/repo?repo=acme/unknown-to-all":                                                `unknown repository`,
	} {
		if _, text := getStatus(t, "http://"+addr+path); !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("GET %s: %s, want %s", path, text, want)
		}
	}
	drop := proctest.Must(http.NewRequestWithContext(ctx, http.MethodDelete, "http://"+addr+"/api/v1/dead/5-1?cell=eu-2", nil))(t)
	resp := proctest.Must(http.DefaultClient.Do(drop))(t)
	resp.Body.Close()
	if _, text := getStatus(t, "http://"+addr+"/api/v1/dead/5-1"); resp.StatusCode != http.StatusOK || !strings.Contains(text, `"cell":"eu-1"`) {
		t.Errorf("DELETE: %s, and then the letter of the other cell is %s", resp.Status, text)
	}

	stopped := cluster.Nodes[masters(t, client, string(two[1].Prefix))[0]]
	proctest.Must(stopped.Client().Save(ctx).Result())(t) // to be there after the restart
	stopped.Stop()
	push("during-eu-1", "eu-1", "")
	if n := changes(two[0], "hub/during-eu-1/0"); n != 1 {
		t.Errorf("%d changes of the cell that answers while the other does not, want 1", n)
	}
	push("during-eu-2", "eu-2", `"spooled":true`)
	for _, path := range []string{"/api/v1/watches?after=1:", "/api/v1/repos?after=1:", "/api/v1/dead?after=1:"} {
		began := time.Now()
		status, text := getStatus(t, "http://"+addr+path)
		if status != http.StatusOK || !strings.Contains(text, `"missing_cell":"eu-2"`) || time.Since(began) > margin() {
			t.Errorf("GET %s: %d %s after %v", path, status, text, time.Since(began))
		}
	}
	began := time.Now()
	if status, text := getStatus(t, "http://"+addr+"/api/v1/dead/7-1"); status != http.StatusServiceUnavailable || time.Since(began) > margin() {
		t.Errorf("a letter that the missing cell may have: %d %s after %v", status, text, time.Since(began))
	}
	proctest.Eventually(t, func() bool { // the list may be a second old
		_, text := getStatus(t, "http://"+addr+"/api/v1/locks")
		return strings.Contains(text, `"missing_cells":["eu-2"]`)
	}, "the list of locks names the missing cell")
	began = time.Now()
	if status, text := getStatus(t, "http://"+addr+"/"); status != http.StatusOK || !strings.Contains(text, `id="c-eu-2"`) || strings.Count(text, "no answer") != 3 || time.Since(began) > margin() {
		t.Errorf("the dashboard: %d after %v\n%s", status, time.Since(began), text)
	}
	began = time.Now()
	if status, text := getStatus(t, "http://"+addr+"/dashboard/repo?repo="+names["eu-2"]); status != http.StatusServiceUnavailable || !strings.Contains(text, "Cell eu-2 does not answer") || time.Since(began) > margin() {
		t.Errorf("the page of a repository of the missing cell: %d after %v\n%s", status, time.Since(began), text)
	}
	proctest.Eventually(t, func() bool { // the index may be from before
		_, text := getStatus(t, "http://"+addr+"/dashboard/repos")
		return strings.Contains(text, "from cell eu-2: its repositories are not listed") && strings.Contains(text, ">"+names["eu-1"]+"<")
	}, "the list of repositories names the missing cell")
	if _, text := getStatus(t, "http://"+addr+"/dashboard/watches"); !strings.Contains(text, "from cell eu-2: its watches are not listed") || !strings.Contains(text, ">"+names["eu-1"]+"<") {
		t.Errorf("the list of watches without the missing cell:\n%s", text)
	}
	if _, text := getStatus(t, "http://"+addr+"/dashboard/dead"); !strings.Contains(text, "from cell eu-2: its letters are not listed") || !strings.Contains(text, `<td data-l="Cell">eu-1<`) {
		t.Errorf("the list of dead letters without the missing cell:\n%s", text)
	}
	if _, text := getStatus(t, "http://"+addr+"/dashboard/leases"); !strings.Contains(text, "from cell eu-2: its leases are not listed") {
		t.Errorf("the list of leases without the missing cell:\n%s", text)
	}
	stopped.Restart()
	proctest.Eventually(t, func() bool { return changes(two[1], "hub/during-eu-2/0") == 1 }, "the spooled webhook is published")

	// The forge repeats a webhook of a repository that has moved since.
	watchURL(t, client, two[1].Prefix, git+names["eu-1"]+".git")
	push("before-eu-1", "eu-1", `"delivery":"before-eu-1"`) // the spool may not be empty yet
	push("after-eu-1", "eu-1", `"delivery":"after-eu-1"`)
	for _, id := range []string{"hub/before-eu-1/0", "hub/after-eu-1/0"} { // the first only looks at the remote
		proctest.Eventually(t, func() bool { return changes(two[1], id) == 1 }, "%s is in the cell to which the repository has moved", id)
	}
}

func getStatus(t *testing.T, url string) (status int, text string) {
	t.Helper()
	return getStatusAs(t, "", url)
}

// getStatusAs sends a token, unless it is "".
func getStatusAs(t *testing.T, token, url string) (status int, text string) {
	t.Helper()
	req := proctest.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil))(t)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp := proctest.Must(http.DefaultClient.Do(req))(t)
	defer resp.Body.Close()
	return resp.StatusCode, string(proctest.Must(io.ReadAll(resp.Body))(t))
}
