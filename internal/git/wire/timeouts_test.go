package wire

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/testenv"
)

func TestTimeoutsOfAHost(t *testing.T) {
	n := testenv.Must(NewNetwork(Config{Timeouts: map[string]Timeouts{
		"": {Pack: time.Minute}, "git.example.org:8443": {Refs: time.Hour}, "slow.example.org": {Pack: time.Hour, Silence: 2 * time.Hour},
	}}))(t)
	defer n.Close()
	for host, want := range map[string]Timeouts{
		"github.com":           {60 * time.Second, time.Minute, 60 * time.Second},
		"git.example.org":      {60 * time.Second, time.Minute, 60 * time.Second},
		"git.example.org:8443": {time.Hour, time.Minute, 60 * time.Second},
		"slow.example.org":     {60 * time.Second, time.Hour, 2 * time.Hour},
	} {
		if got := n.timeouts(host); got != want {
			t.Errorf("%s: %v, want %v", host, got, want)
		}
	}
	if got, want := new(Network).timeouts(""), (Timeouts{60 * time.Second, 120 * time.Second, 60 * time.Second}); got != want {
		t.Errorf("by default %v, want %v", got, want)
	}
}

// TestTimeoutNamesItsSetting has a host send nothing, or only its status.
func TestTimeoutNamesItsSetting(t *testing.T) {
	for name, status := range map[string]bool{"nothing": false, "a status": true} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if status {
				w.WriteHeader(http.StatusOK)
				_ = http.NewResponseController(w).Flush()
			}
			<-r.Context().Done()
		}))
		host := testenv.Must(url.Parse(server.URL))(t).Host
		n := testenv.Must(NewNetwork(Config{Timeouts: map[string]Timeouts{"": {time.Hour, time.Hour, time.Hour}, host: {Refs: 50 * time.Millisecond}}}))(t)
		r := dial(t, n, server.URL+"/acme/widgets", Auth{})

		err := r.List(t.Context())

		testenv.MustFail(t, err, events.ClassNetwork, events.Retryable)
		if !strings.Contains(err.Error(), host+" sent no list of refs within 50ms; raise refs in the setting host-timeouts") {
			t.Errorf("%s: %v", name, err)
		}
		n.Close()
		server.Close()
	}
}
