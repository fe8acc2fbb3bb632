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
	longest      = time.Hour // of one stream: then the browser comes again
)

// stream follows a page for a browser. The connection's own deadlines are for requests that are over soon: here
// each write has its own. It ends with the session, with the dashboard, or when the browser cannot follow.
func (d *Dashboard) stream(w http.ResponseWriter, r *http.Request) {
	p, v := d.pages[r.URL.Query().Get("page")], d.access.visitor(r)
	if p == nil || p.load == nil {
		http.Error(w, "there is no such page", http.StatusNotFound)
		return
	}
	if r.Header.Get("Sec-Fetch-Site") == "cross-site" {
		http.Error(w, "this is for the dashboard's own pages", http.StatusForbidden)
		return
	}
	c, leave, err := d.hub.follow(p, p.query(r.URL.Query()), v.admin())
	if err != nil {
		w.Header().Set("Retry-After", "10")
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer leave()
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{}) // a recorder in a test has none
	send := func(text string) bool {
		_ = control.SetWriteDeadline(time.Now().Add(writeTimeout))
		_, err := io.WriteString(w, text)
		return errors.Join(err, control.Flush()) == nil
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx would collect them
	if !send("retry: 1000\n\n") {
		return
	}
	end := time.NewTimer(longest)
	if !v.ends.IsZero() {
		end.Reset(min(longest, time.Until(v.ends)))
	}
	defer end.Stop()
	beats := time.NewTicker(heartbeat)
	defer beats.Stop()
	for ok := true; ok; {
		select {
		case part := <-c.parts:
			ok = send(event(part))
		case <-beats.C:
			ok = send(": still here\n\n")
		case <-c.gone:
			return
		case <-end.C:
			return
		case <-r.Context().Done():
			return
		case <-d.hub.ctx.Done():
			return
		}
	}
}

// event writes a part as a server-sent event. Each line end of its own begins a field of its own.
func event(p part) string {
	lines := strings.NewReplacer("\r\n", "\ndata: ", "\r", "\ndata: ", "\n", "\ndata: ").Replace(p.content)
	return "event: " + p.name + "\ndata: " + lines + "\n\n"
}
