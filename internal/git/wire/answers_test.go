package wire

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"lockstep/events"
	"lockstep/internal/testenv"
)

// TestWhatAnAnswerMeans has a server for each answer of a forge, a proxy or a firewall. A further one is a line.
func TestWhatAnAnswerMeans(t *testing.T) {
	const html, advert, line = "text/html; charset=utf-8", "application/x-git-upload-pack-advertisement", "001e# service=git-upload-pack\n0000"
	says := func(text string) string { return fmt.Sprintf("%s%04xERR %s", line, len(text)+8, text) }
	for name, tc := range map[string]struct {
		status      int
		to          string // where it redirects to first
		kind, body  string
		anonymous   bool
		class       events.Class
		disposition events.Disposition
		text        string // in the error
	}{
		"a login page after a redirect":       {200, "/users/sign_in", html, "<form>", false, events.ClassAuth, events.Permanent, "page to log in"},
		"a page of single sign-on":            {200, "/idp/profile/SAML2/Redirect/SSO", html, "", false, events.ClassAuth, events.Permanent, "page to log in"},
		"Azure DevOps' sign-in":               {203, "", html, "<html>Sign In", false, events.ClassAuth, events.Permanent, "page to log in"},
		"a login page in place":               {200, "", html, `<p><input id="p" name=pw type="password">`, false, events.ClassAuth, events.Permanent, "page to log in"},
		"a login page, without a credential":  {200, "/login", html, "", true, events.ClassAuth, events.Permanent, "requires a credential"},
		"a page of maintenance":               {200, "", html, "<h1>Back soon</h1>", false, events.ClassServer, events.Retryable, "web page"},
		"a page of maintenance by a redirect": {200, "/maintenance.html", html, "", false, events.ClassServer, events.Retryable, "web page"},
		"a path that has login in a word":     {200, "/blogins/now", html, "", false, events.ClassServer, events.Retryable, "web page"},
		"a proxy's login":                     {407, "", html, "", false, events.ClassNetwork, events.Retryable, "proxy"},
		"a page for a repository named login": {200, "", html, "<h1>Back soon</h1>", false, events.ClassServer, events.Retryable, "web page"},
		"not paid for":                        {402, "", "", "", false, events.ClassAuth, events.Permanent, "HTTP 402"},
		"locked":                              {423, "", "", "", false, events.ClassServer, events.Retryable, "HTTP status 423"},
		"a conflict":                          {409, "", "", "", false, events.ClassServer, events.Retryable, "HTTP status 409"},
		"what a load balancer has made up":    {460, "", "", "", false, events.ClassServer, events.Retryable, "HTTP status 460"},
		"DMCA":                                {451, "", "", "", false, events.ClassAuth, events.Permanent, "HTTP 451"},
		"DMCA, without a credential":          {451, "", "", "", true, events.ClassAuth, events.Permanent, "HTTP 451"},
		"a bad request":                       {400, "", html, "No required SSL certificate was sent", false, events.ClassServer, events.Permanent, "HTTP status 400"},
		"a method that is refused":            {405, "", "", "", false, events.ClassServer, events.Permanent, "HTTP status 405"},
		"a teapot":                            {418, "", "", "", false, events.ClassServer, events.Permanent, "HTTP status 418"},
		"a timeout of the server":             {408, "", "", "", false, events.ClassServer, events.Retryable, "HTTP status 408"},
		"too early":                           {425, "", "", "", false, events.ClassServer, events.Retryable, "HTTP status 425"},
		"a bad gateway":                       {502, "", "", "", false, events.ClassServer, events.Retryable, "HTTP status 502"},
		"a refusal":                           {403, "", "text/plain", "You may not read it.", false, events.ClassAuth, events.Permanent, "refused the credential robot (HTTP 403)"},
		"a secondary rate limit":              {403, "", "application/json", `{"message":"You have exceeded a secondary rate limit"}`, false, events.ClassBusy, events.Retryable, "limits"},
		"a firewall":                          {403, "", html, "<title>Too Many Requests</title>", false, events.ClassBusy, events.Retryable, "limits"},
		"a firewall that blocks":              {403, "", html, "Your address is temporarily blocked", false, events.ClassBusy, events.Retryable, "limits"},
		"dumb HTTP":                           {200, "", "text/plain", strings.Repeat("a", 40) + "\trefs/heads/main\n", false, events.ClassConfig, events.Permanent, "dumb HTTP"},
		"SAML in words":                       {200, "", advert, says("The 'acme' organization has enabled or enforced SAML SSO."), false, events.ClassAuth, events.Permanent, "credential"},
		"an IP allow list in words":           {200, "", advert, says("the organization has an IP allow list enabled"), false, events.ClassAuth, events.Permanent, "credential"},
		"a suspended account":                 {200, "", advert, says("Your account is suspended."), false, events.ClassAuth, events.Permanent, "credential"},
		"a disabled repository":               {200, "", advert, says("Access to this repository has been disabled by staff"), false, events.ClassAuth, events.Permanent, "credential"},
		"a takedown":                          {200, "", advert, says("Repository unavailable due to DMCA takedown."), false, events.ClassAuth, events.Permanent, "credential"},
		"permission denied to a name":         {200, "", advert, says("Permission to acme/widgets.git denied to robot."), false, events.ClassAuth, events.Permanent, "credential"},
		"a rate limit in words":               {200, "", advert, says("rate limit exceeded"), false, events.ClassBusy, events.Retryable, "limits"},
		"a name like a limit":                 {200, "", advert, says("Permission to acme/rate-limiter.git denied to robot."), false, events.ClassAuth, events.Permanent, "credential"},
		"a name like a limit, not found":      {200, "", advert, says("Repository acme/rate-limit-exceeded not found"), false, events.ClassNotFound, events.Permanent, "no such repository"},
		"a page with a word like a limit":     {403, "", html, "<script>rate_limit=5</script>", false, events.ClassAuth, events.Permanent, "HTTP 403"},
		"maintenance in words":                {200, "", advert, says("Repository access is temporarily disabled for maintenance"), false, events.ClassServer, events.Retryable, "protocol error"},
		"a name like single sign-on":          {200, "", advert, says("internal error in repository acme/saml-sp: try again"), false, events.ClassServer, events.Retryable, "protocol error"},
		"a warning of SSH":                    {200, "", advert, says("Permanently added the host key for IP address '10.0.0.7'"), false, events.ClassServer, events.Retryable, "protocol error"},
		"a filter that is disabled":           {200, "", advert, says("filtering is disabled"), false, events.ClassServer, events.Retryable, "protocol error"},
		"not found in words":                  {200, "", advert, says("Repository not found."), false, events.ClassNotFound, events.Permanent, "no such repository, or the credential robot may not"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if tc.to != "" && r.URL.Path != tc.to {
					http.Redirect(w, r, tc.to, http.StatusFound)
					return
				}
				w.Header().Set("Content-Type", tc.kind)
				w.WriteHeader(tc.status)
				_, _ = w.Write([]byte(tc.body))
			}))
			defer server.Close()
			auth := Auth{Name: "robot", Username: "ada", Password: secret}
			if tc.anonymous {
				auth = Auth{}
			}
			network := testenv.Must(NewNetwork(Config{}))(t)
			repo := "/acme/widgets"
			if name == "a page for a repository named login" {
				repo = "/acme/login.git"
			}
			_, err := network.DialAndList(t.Context(), server.URL+repo, auth, false, Limits{Timeout: time.Minute, MaxPackBytes: 1 << 20}, "refs/heads/")
			testenv.MustFail(t, err, tc.class, tc.disposition)
			if !strings.Contains(err.Error(), tc.text) {
				t.Errorf("the error says %v, want %q", err, tc.text)
			}
		})
	}
}
