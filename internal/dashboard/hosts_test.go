package dashboard

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

func TestLimitedHostsAreShown(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	d.ask("idle.example", "acme/1", "", http.StatusOK)
	if page := d.page("/", nil); strings.Contains(page, "Requests to hosts") {
		t.Errorf("hosts are shown although none is limited: %s", page)
	}
	d.ask("git.example", "acme/1", "robot", http.StatusTooManyRequests)
	for n := range 3 {
		d.ask("git.example", fmt.Sprintf("acme/%d", n), "robot", 0)
	}
	for name, query := range map[string]http.Header{"anonymous": nil, "admin": bearer} {
		text := d.follow("page=overview", query).await("hosts", "git.example").content
		for _, want := range []string{`<span class="badge warn">rate limit</span>`, `data-how="in"`, `class="n">3</td>`} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %s in %s", name, want, text)
			}
		}
		if strings.Contains(text, "idle.example") || strings.Contains(text, "robot") != (query != nil) {
			t.Errorf("%s: %s", name, text)
		}
	}
}
