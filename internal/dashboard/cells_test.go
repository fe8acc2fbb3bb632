package dashboard

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"lockstep/events/stream"
	"lockstep/internal/server"
)

// deadCells has the letters of two cells. The second one does not answer if it is away.
type deadCells struct {
	cells map[string]server.Dead
	away  bool
}

func (c *deadCells) List(ctx context.Context, q stream.Query) (page server.DeadPage, err error) {
	page.Cell, q.After, _ = strings.Cut(q.After, ":")
	if page.Cell == "" {
		page.Cell = "eu-1"
	}
	if page.Missing = page.Cell == "eu-2" && c.away; page.Missing {
		return page, nil
	}
	page.Letters, page.Next, err = c.cells[page.Cell].List(ctx, q)
	switch {
	case page.Next != "":
		page.Next = page.Cell + ":" + page.Next
	case page.Cell == "eu-1":
		page.Next = "eu-2:"
	}
	return page, err
}

func (c *deadCells) Of(ctx context.Context, cell, id string) (server.Dead, string, error) {
	for name, dead := range c.cells {
		if _, err := dead.Get(ctx, id); name == cell || cell == "" && err == nil {
			return dead, name, nil
		}
	}
	return nil, "", stream.ErrNoLetter
}

// TestDeadLettersOfAllCells lists, shows, retries and drops the letters of two cells, which have the same IDs.
func TestDeadLettersOfAllCells(t *testing.T) {
	t.Parallel()
	all := &deadCells{cells: map[string]server.Dead{}}
	d := startDesk(t, func(cfg *Config) { cfg.DeadCells = all })
	prefix := map[string]string{"eu-1": "lockstep:{0}:", "eu-2": "lockstep:{eu-2}:"}
	for cell, prefix := range prefix {
		dead := stream.NewDeadLetters(d.client, prefix)
		all.cells[cell] = dead
	}
	left := func(cell string) int64 { return d.client.XLen(t.Context(), prefix[cell]+"dead").Val() }
	waiting := func(cell string) int64 { return d.client.XLen(t.Context(), prefix[cell]+"changes").Val() }
	for _, repo := range []string{"acme/one", "acme/two", "acme/three"} {
		id := d.bury("failed", "it broke", map[string]string{"repo": repo, "url": "https://git.example.com/" + repo + ".git"})
		letter := d.client.XRange(t.Context(), "lockstep:{0}:dead", id, id).Val()[0]
		letter.Values["stream"] = prefix["eu-2"] + "changes"
		letter.Values["original:repo"] = repo + "-2"
		if err := d.client.Do(t.Context(), append([]any{"XADD", prefix["eu-2"] + "dead", id}, pairs(letter.Values)...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	cookie, csrf := d.logIn()
	page := d.page("/dashboard/dead", cookie)
	if strings.Count(page, `<tr id="d-eu-1`) != 3 || strings.Count(page, `<tr id="d-eu-2`) != 3 || strings.Contains(page, "do not answer") {
		t.Fatalf("not all letters are listed: %s", page)
	}
	id := all.first(t, "eu-2")
	if page := d.page("/dashboard/dead/letter?cell=eu-2&id="+id, cookie); !strings.Contains(page, "-2</a>") || !strings.Contains(page, `name="cell" value="eu-2"`) || !strings.Contains(page, "of cell eu-2") {
		t.Errorf("the letter of one cell: %s", page)
	}
	d.visit("POST", "/dashboard/dead/retry?cell=eu-2", url.Values{"id": {id}, "csrf": {csrf}}, cookie)
	if left("eu-1") != 3 || left("eu-2") != 2 || waiting("eu-2") != 1 || waiting("eu-1") != 0 {
		t.Errorf("after a retry in one cell %d and %d letters are left", left("eu-1"), left("eu-2"))
	}
	d.visit("POST", "/dashboard/dead/drop", url.Values{"id": {all.first(t, "eu-1")}, "cell": {"eu-1"}, "csrf": {csrf}}, cookie)
	if left("eu-1") != 2 || left("eu-2") != 2 {
		t.Errorf("after a drop in one cell %d and %d letters are left", left("eu-1"), left("eu-2"))
	}
	all.away = true
	if page := d.page("/dashboard/dead", cookie); !strings.Contains(page, "from cell eu-2: its letters are not listed") || strings.Count(page, `<tr id="d-`) != 2 {
		t.Errorf("with a cell that does not answer: %s", page)
	}
	resp, _ := d.visit("POST", "/dashboard/dead/retry-all", url.Values{"csrf": {csrf}}, cookie)
	note := http.Header{"Cookie": {cookie.Get("Cookie") + "; " + resp.Cookies()[0].Name + "=" + resp.Cookies()[0].Value}}
	if page := d.page("/dashboard/dead", note); left("eu-1") != 0 || left("eu-2") != 2 || !strings.Contains(page, "2 dead letters are back in their streams. No answer from cell eu-2.") {
		t.Errorf("%d and %d letters are left after all were retried: %s", left("eu-1"), left("eu-2"), page)
	}
	all.away = false
	d.visit("POST", "/dashboard/dead/retry-all", url.Values{"csrf": {csrf}}, cookie)
	if left("eu-2") != 0 || waiting("eu-2") != 3 {
		t.Errorf("%d letters of the other cell are left", left("eu-2"))
	}
}

// first returns the ID of the newest letter of a cell.
func (c *deadCells) first(t *testing.T, cell string) string {
	t.Helper()
	letters, _, err := c.cells[cell].List(t.Context(), stream.Query{Limit: 1})
	if err == nil && len(letters) == 0 {
		err = errors.New("no letter")
	}
	if err != nil {
		t.Fatal(err)
	}
	return letters[0].ID
}

func pairs(fields map[string]any) (list []any) {
	for name, value := range fields {
		list = append(list, name, value)
	}
	return list
}
