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
)

// words are what templates write figures, moments and foreign texts with.
func words(a assets) template.FuncMap {
	return template.FuncMap{
		"asset": a.url, "clip": clip, "short": short, "count": count, "size": size, "took": took, "share": share,
		"ago": ago, "lasting": lasting, "until": until, "link": link, "word": word, "ref": refName,
	}
}

// clip is a text from outside in at most n characters, without those that change how the rest is shown.
func clip(n int, text string) string {
	text = tame(text[:min(len(text), utf8.UTFMax*(n+1))], "") // of a very long one no more is looked at
	if runes := []rune(text); len(runes) > n {
		return string(runes[:n-1]) + "…"
	}
	return text
}

// tame replaces what has no place in a text: controls, and what turns its direction or hides in it.
func tame(text, keep string) string {
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

// short is the beginning of a commit's name.
func short(commit string) string { return clip(12, commit[:min(len(commit), 12)]) }

// word makes a word of a name with underscores or dots in it.
func word(name any) string {
	return clip(40, strings.NewReplacer("_", " ", ".", " ").Replace(fmt.Sprint(name)))
}

// count writes a number in groups of three digits.
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
		text = text[:i] + "\u202f" + text[i:] // a narrow space that no line breaks at
	}
	return text
}

// size writes bytes with a unit.
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

// took writes how long something took, to two or three digits.
func took(d time.Duration) string {
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

// share is done of total in percent, at most 100.
func share(done, total int64) int64 {
	if total <= 0 {
		return 0
	}
	return max(0, min(100, int64(float64(done)/float64(total)*100)))
}

// ago is how long before now a moment was, lasting for how long something goes on since then, and until in how long
// it comes. A part of a page that is live is rendered without a now, so that it is the same as long as what it shows
// is: the browser writes the words.
func ago(now, at time.Time) template.HTML     { return moment(now, at, "ago") }
func lasting(now, at time.Time) template.HTML { return moment(now, at, "for") }
func until(now, at time.Time) template.HTML   { return moment(now, at, "in") }

func moment(now, at time.Time, how string) template.HTML {
	if at.IsZero() {
		return `<span class="none">never</span>`
	}
	at = at.UTC()
	text := at.Format("15:04:05")
	if !now.IsZero() {
		switch how {
		case "ago":
			text = took(max(0, now.Sub(at))) + " ago"
		case "for":
			text = took(max(0, now.Sub(at)))
		case "in":
			text = "in " + took(max(0, at.Sub(now)))
		}
	}
	return template.HTML(fmt.Sprintf(`<time datetime="%s" title="%s" data-how="%s">%s</time>`, // nothing of it is from outside
		at.Format("2006-01-02T15:04:05.000Z"), at.Format("2006-01-02 15:04:05 UTC"), how, text))
}

// link is a page's address with a query of names and values in turn; those without a value are left out.
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
