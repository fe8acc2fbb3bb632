package dashboard

import (
	"fmt"
	"html/template"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"lockstep/internal/notify"
	"lockstep/internal/operate"
	"lockstep/internal/state"
)

func (d *Dashboard) templateFuncs() template.FuncMap {
	return template.FuncMap{
		"asset": d.assets.url, "poll": d.pollOf, "clip": clip, "short": short, "count": count, "size": size,
		"duration": formatDuration, "percent": percent, "ago": ago, "elapsed": elapsed, "until": until,
		"link": link, "lookAt": lookAt, "keep": keep, "pages": pagesOf, "lack": lack, "word": word, "ref": refName,
		"failure": failureAt, "boxat": boxAt, "rows": rowsAt,
		"repoOrders": func() [][2]string { return repoOrders },
		"verdicts":   func() []string { return []string{"accepted", "ignored", "refused"} },
		"outcomes":   func() []string { return outcomeNames },
	}
}

// lookAt returns the page where there is more about a concern.
func lookAt(see operate.Look) string {
	switch see {
	case operate.LookRepos:
		return "/dashboard/repos?state=failing&sort=failures"
	case operate.LookNotify:
		return "/dashboard/outbox"
	case operate.LookVolume:
		return "/dashboard/repos?sort=size"
	}
	return "/dashboard/" + string(see) // named alike
}

// boxLine is an outbox as a visitor sees it.
type boxLine struct {
	notify.Box
	Now   time.Time
	Admin bool
}

func boxAt(now time.Time, admin bool, box notify.Box) boxLine { return boxLine{box, now, admin} }

// failureLine is a failure as a visitor sees it.
type failureLine struct {
	state.Trouble
	Now   time.Time
	Admin bool
}

func failureAt(now time.Time, admin bool, f state.Trouble) failureLine {
	return failureLine{f, now, admin}
}

// resultRows are rows of results as a visitor sees them.
type resultRows struct {
	Rows  []resultRow
	Now   time.Time
	Admin bool
	Named bool // each row names its repository
}

func rowsAt(now time.Time, admin, named bool, rows []resultRow) resultRows {
	return resultRows{rows, now, admin, named}
}

// clip sanitizes untrusted text and truncates it to at most n characters.
func clip(n int, text string) string {
	text = sanitize(text[:min(len(text), utf8.UTFMax*(n+1))], "") // sanitize no more of a long text than needed
	if runes := []rune(text); len(runes) > n {
		return string(runes[:n-1]) + "…"
	}
	return text
}

// sanitize replaces control characters and invisible or text-direction characters by U+FFFD, except those in keep.
func sanitize(text, keep string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(keep, r) {
			return r
		}
		if unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

func short(commit string) string { return clip(12, commit[:min(len(commit), 12)]) }

// word formats an identifier by replacing underscores and dots with spaces.
func word(name any) string {
	return clip(40, strings.NewReplacer("_", " ", ".", " ").Replace(fmt.Sprint(name)))
}

// count formats a number in groups of three digits.
func count(number any) string {
	var n int64
	switch number := number.(type) {
	case int:
		n = int64(number)
	case int64:
		n = number
	case float64:
		if number > 0 && number < 10 {
			return strconv.FormatFloat(number, 'f', 1, 64)
		}
		n = int64(number + 0.5)
	}
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "\u202f" + text[i:] // narrow no-break space
	}
	return text
}

// size formats a number of bytes with a binary unit.
func size(bytes int64) string {
	n, unit := float64(bytes), "B"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB", "PiB"} {
		if n < 1024 {
			break
		}
		n, unit = n/1024, next
	}
	if unit == "B" || n >= 100 {
		return fmt.Sprintf("%.0f\u00a0%s", n, unit)
	}
	return fmt.Sprintf("%.1f\u00a0%s", n, unit)
}

// formatDuration formats a duration with two or three digits and one unit.
func formatDuration(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d\u00a0ms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f\u00a0s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%.0f\u00a0s", d.Seconds())
	case d < 2*time.Hour:
		return fmt.Sprintf("%.0f\u00a0min", d.Minutes())
	case d < 48*time.Hour:
		return fmt.Sprintf("%.0f\u00a0h", d.Hours())
	}
	return fmt.Sprintf("%.0f\u00a0d", d.Hours()/24)
}

// percent returns done as a percentage of total, at most 100.
func percent(done, total int64) int64 {
	if total <= 0 {
		return 0
	}
	return max(0, min(100, int64(float64(done)/float64(total)*100)))
}

// ago, elapsed and until format a time relative to now, as "5 s ago", "5 s" and "in 5 s". Live parts are rendered with
// a zero now, so that their HTML changes only when the data does; the browser then fills in the relative time.
func ago(now, at time.Time) template.HTML     { return relativeTime(now, at, "ago") }
func elapsed(now, at time.Time) template.HTML { return relativeTime(now, at, "for") }
func until(now, at time.Time) template.HTML   { return relativeTime(now, at, "in") }

func relativeTime(now, at time.Time, how string) template.HTML {
	if at.IsZero() {
		return `<span class="none">never</span>`
	}
	at = at.UTC()
	text := at.Format("15:04:05")
	if !now.IsZero() {
		switch how {
		case "ago":
			text = formatDuration(max(0, now.Sub(at))) + " ago"
		case "for":
			text = formatDuration(max(0, now.Sub(at)))
		case "in":
			if text = "due"; at.After(now) {
				text = "in " + formatDuration(at.Sub(now))
			}
		}
	}
	// contains no untrusted text
	return template.HTML(fmt.Sprintf(`<time datetime="%s" title="%s" data-how="%s">%s</time>`,
		at.Format("2006-01-02T15:04:05.000Z"), at.Format("2006-01-02 15:04:05 UTC"), how, text))
}

// incomplete is a list that lacks what some cells have.
type incomplete struct {
	Cells []string
	What  string
}

func lack(cells []string, what string) incomplete { return incomplete{cells, what} }

// link returns a URL with a query made of alternating names and values. Empty values are omitted.
func link(path string, pairs ...string) string {
	query := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			query.Set(pairs[i], pairs[i+1])
		}
	}
	if len(query) == 0 {
		return path
	}
	return path + "?" + query.Encode()
}

// keep is link with the parameters of a list's query, but not its page.
func keep(path string, query map[string]string, pairs ...string) string {
	var kept []string
	for name, value := range query {
		if name != "after" && name != "n" {
			kept = append(kept, name, value)
		}
	}
	return link(path, append(kept, pairs...)...)
}

// pages are the links to the pages of a list: Param has the next one, which is "" on the last.
type pages struct {
	Path        string
	Query       map[string]string
	Param, Next string
}

func pagesOf(path string, query map[string]string, param, next string) pages {
	return pages{path, query, param, next}
}
