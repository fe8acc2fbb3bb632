package dashboard

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"time"
)

const (
	heartbeat    = 15 * time.Second
	writeTimeout = 10 * time.Second
	maxStreamAge = time.Hour // after which the browser reconnects
)

// stream sends the parts of a page to a browser as they change. It replaces the connection's deadlines, which
// suit short requests, with a deadline per write. It ends with the session or the dashboard. A slow browser gets only
// the newest content of each part.
func (d *Dashboard) stream(w http.ResponseWriter, r *http.Request) {
	p, v := d.pages[r.URL.Query().Get("page")], d.access.visitor(r)
	if p == nil || p.load == nil {
		http.Error(w, "no such page", http.StatusNotFound)
		return
	}
	if r.Header.Get("Sec-Fetch-Site") == "cross-site" {
		http.Error(w, "only the dashboard's own pages may use this stream", http.StatusForbidden)
		return
	}
	c, unsubscribe, err := d.hub.subscribe(p, p.query(r.URL.Query()), v.admin())
	if err != nil {
		w.Header().Set("Retry-After", "10")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer unsubscribe()
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // not supported by test recorders
	send := func(text string) bool {
		_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
		_, err := io.WriteString(w, text)
		return errors.Join(err, control.Flush()) == nil
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // otherwise nginx buffers the stream
	if !send("retry: 1000\n\n") {
		return
	}
	end := time.NewTimer(maxStreamAge)
	if !v.expires.IsZero() {
		end.Reset(min(maxStreamAge, time.Until(v.expires)))
	}
	defer end.Stop()
	heartbeats := time.NewTicker(heartbeat)
	defer heartbeats.Stop()
	for ok := true; ok; {
		select {
		case <-c.woken:
			for _, part := range d.hub.next(c) {
				ok = ok && send(event(part))
			}
		case <-heartbeats.C:
			if v.logout && !d.access.visitor(r).logout { // logged out meanwhile, here or at another replica
				return
			}
			ok = send(": heartbeat\n\n")
		case <-end.C:
			return
		case <-r.Context().Done():
			return
		case <-d.hub.ctx.Done():
			return
		}
	}
}

// event formats a part as a server-sent event, with one data field per line.
func event(p part) string {
	lines := strings.NewReplacer("\r\n", "\ndata: ", "\r", "\ndata: ", "\n", "\ndata: ").Replace(p.content)
	return "event: " + p.name + "\ndata: " + lines + "\n\n"
}
