package dashboard

import (
	"net/url"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/internal/cells"
	"lockstep/internal/operate"
)

// TestDeadLettersOfAllCells lists, retries and drops the letters of two cells, which have the same IDs.
func TestDeadLettersOfAllCells(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	directory, err := cells.OpenOrNew(t.Context(), d.client)
	prefix := map[string]string{"eu-1": "lockstep:{0}:", "eu-2": "lockstep:{eu-2}:"}
	for _, cell := range []string{"eu-1", "eu-2"} {
		if _, failed := directory.Add(t.Context(), cell, events.Namespace(prefix[cell]), 0); failed != nil || err != nil {
			t.Fatal(failed, err)
		}
	}
	d.board.cfg.Letters = &operate.Letters{Cells: cells.All(d.client, directory)}
	left := func(cell string) int64 { return d.client.XLen(t.Context(), prefix[cell]+"dead").Val() }
	waiting := func(cell string) int64 { return d.client.XLen(t.Context(), prefix[cell]+"changes").Val() }
	var id string
	for _, repo := range []string{"acme/one", "acme/two", "acme/three"} {
		id = d.bury("failed", "it broke", map[string]string{"repo": repo, "url": "https://git.example.com/" + repo + ".git"})
		letter := d.client.XRange(t.Context(), "lockstep:{0}:dead", id, id).Val()[0]
		letter.Values["stream"], letter.Values["original:repo"] = prefix["eu-2"]+"changes", repo+"-2"
		d.client.XAdd(t.Context(), &redis.XAddArgs{Stream: prefix["eu-2"] + "dead", ID: id, Values: letter.Values})
	}
	cookie, csrf := d.logIn()
	page := d.page("/dashboard/dead", cookie)
	if strings.Count(page, `<tr id="d-eu-1`) != 3 || strings.Count(page, `<tr id="d-eu-2`) != 3 || strings.Contains(page, "do not answer") {
		t.Fatalf("not all letters are listed: %s", page)
	}
	d.visit("POST", "/dashboard/dead/retry?cell=eu-2", url.Values{"id": {id}, "csrf": {csrf}}, cookie)
	if left("eu-1") != 3 || left("eu-2") != 2 || waiting("eu-2") != 1 || waiting("eu-1") != 0 {
		t.Errorf("after a retry in one cell %d and %d letters are left", left("eu-1"), left("eu-2"))
	}
	d.visit("POST", "/dashboard/dead/drop", url.Values{"id": {id}, "cell": {"eu-1"}, "csrf": {csrf}}, cookie)
	if left("eu-1") != 2 || left("eu-2") != 2 {
		t.Errorf("after a drop in one cell %d and %d letters are left", left("eu-1"), left("eu-2"))
	}
}
