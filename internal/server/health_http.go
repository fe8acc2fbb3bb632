package server

import (
	"fmt"
	"io"
	"net/http"
	"strings"
)

// probes serves /livez and /readyz. The response is one line, "ok" or the failures; with ?verbose one line per check,
// in the format of Kubernetes' own servers; or JSON if the request accepts it.
func probes(mux interface {
	Handle(pattern string, handler http.Handler)
}, live, ready *Health) {
	mux.Handle("GET /livez", showHealth("livez", live))
	mux.Handle("GET /readyz", showHealth("readyz", ready))
}

func showHealth(name string, health *Health) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		report := health.Report(r.Context())
		status := http.StatusOK
		if !report.OK {
			status = http.StatusServiceUnavailable
		}
		w.Header().Set("Cache-Control", "no-store")
		if strings.Contains(r.Header.Get("Accept"), "application/json") {
			reply(w, status, report)
			return
		}
		text := report.line()
		if r.URL.Query().Has("verbose") {
			text = report.verbose(name)
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	})
}

func (r Report) line() string {
	if r.OK {
		return "ok\n"
	}
	var failures []string
	for _, f := range r.Checks {
		if !f.OK && f.Counts {
			failures = append(failures, f.Name+": "+f.Reason)
		}
	}
	return strings.Join(failures, "; ") + "\n"
}

// verbose formats the report with a line per check: [+] passed, [-] failed, [!] failed but not critical.
func (r Report) verbose(name string) string {
	var b strings.Builder
	for _, f := range r.Checks {
		switch {
		case f.OK:
			fmt.Fprintf(&b, "[+]%s ok\n", f.Name)
		case f.Counts:
			fmt.Fprintf(&b, "[-]%s failed: %s\n", f.Name, f.Reason)
		default:
			fmt.Fprintf(&b, "[!]%s failed (non-critical): %s\n", f.Name, f.Reason)
		}
	}
	verdict := "passed"
	if !r.OK {
		verdict = "failed"
	}
	fmt.Fprintf(&b, "%s check %s\n", name, verdict)
	return b.String()
}
