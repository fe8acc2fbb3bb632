package dashboard

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"lockstep/internal/server"
)

func TestWhoMayChangeSomething(t *testing.T) {
	proxy := Proxy{Header: "X-Forwarded-User", From: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}
	some := proxy
	some.Users = []string{"ada"}
	for name, tc := range map[string]struct {
		guard  server.Guard
		proxy  Proxy
		from   string
		host   string
		header http.Header
		want   string
	}{
		"nobody":                               {server.Guard{Token: token}, Proxy{}, "192.0.2.1", "", nil, ""},
		"the token":                            {server.Guard{Token: token}, Proxy{}, "192.0.2.1", "", bearer, "token"},
		"a wrong token":                        {server.Guard{Token: token}, Proxy{}, "192.0.2.1", "", http.Header{"Authorization": {"Bearer no"}}, ""},
		"the token by another scheme":          {server.Guard{Token: token}, Proxy{}, "192.0.2.1", "", http.Header{"Authorization": {"Basic " + token}}, ""},
		"this machine, which has a token":      {server.Guard{Token: token, Loopback: true}, Proxy{}, "127.0.0.1", "localhost", nil, ""},
		"this machine without one":             {server.Guard{Loopback: true}, Proxy{}, "127.0.0.1", "localhost:8080", nil, "localhost"},
		"this machine through a proxy":         {server.Guard{Loopback: true}, Proxy{}, "127.0.0.1", "localhost", http.Header{"X-Forwarded-For": {"192.0.2.1"}}, ""},
		"this machine by a rebound name":       {server.Guard{Loopback: true}, Proxy{}, "127.0.0.1", "evil.example", nil, ""},
		"others without one":                   {server.Guard{}, Proxy{}, "192.0.2.1", "localhost", nil, ""},
		"no token, and none given":             {server.Guard{}, Proxy{}, "192.0.2.1", "", http.Header{"Authorization": {"Bearer "}}, ""},
		"the proxy's user":                     {server.Guard{Token: token}, proxy, "10.1.2.3", "", http.Header{"X-Forwarded-User": {"bob"}}, "bob"},
		"the proxy's user by IPv6":             {server.Guard{Token: token}, proxy, "::ffff:10.1.2.3", "", http.Header{"X-Forwarded-User": {"bob"}}, "bob"},
		"the header from elsewhere":            {server.Guard{Token: token}, proxy, "10.2.2.3", "", http.Header{"X-Forwarded-User": {"bob"}}, ""},
		"the header twice":                     {server.Guard{Token: token}, proxy, "10.1.2.3", "", http.Header{"X-Forwarded-User": {"bob", "ada"}}, ""},
		"an empty header":                      {server.Guard{Token: token}, proxy, "10.1.2.3", "", http.Header{"X-Forwarded-User": {" "}}, ""},
		"a header that writes lines":           {server.Guard{Token: token}, proxy, "10.1.2.3", "", http.Header{"X-Forwarded-User": {"bob\u202eada"}}, ""},
		"a very long header":                   {server.Guard{Token: token}, proxy, "10.1.2.3", "", http.Header{"X-Forwarded-User": {strings.Repeat("b", 201)}}, ""},
		"one of the users":                     {server.Guard{Token: token}, some, "10.1.2.3", "", http.Header{"X-Forwarded-User": {"ada"}}, "ada"},
		"none of the users":                    {server.Guard{Token: token}, some, "10.1.2.3", "", http.Header{"X-Forwarded-User": {"bob"}}, ""},
		"a user in another case":               {server.Guard{Token: token}, some, "10.1.2.3", "", http.Header{"X-Forwarded-User": {"Ada"}}, ""},
		"the token through the proxy":          {server.Guard{Token: token}, proxy, "10.1.2.3", "", bearer, "token"},
		"through the proxy as if at localhost": {server.Guard{Loopback: true}, proxy, "10.1.2.3", "localhost", nil, ""},
		"a header that no proxy is named for":  {server.Guard{Token: token}, Proxy{}, "10.1.2.3", "", http.Header{"X-Forwarded-User": {"ada"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := newAccess(Config{Guard: tc.guard, Proxy: tc.proxy})
			if err != nil {
				t.Fatal(err)
			}
			r := httptest.NewRequest("GET", "/", nil)
			r.RemoteAddr = netip.AddrPortFrom(netip.MustParseAddr(tc.from), 4711).String()
			r.Host = tc.host
			for name, values := range tc.header {
				r.Header[name] = values
			}
			v := a.visitor(r)
			if v.name != tc.want || v.admin() != (tc.want != "") {
				t.Errorf("%+v, want %q", v, tc.want)
			}
			// Whoever a browser may be made to speak for needs a form of the page; a program that sends the token does not.
			if v.admin() && (v.proof == "") != (tc.header.Get("Authorization") != "") {
				t.Errorf("forms are bound to %q", v.proof)
			}
		})
	}
}

func TestTriesAreCountedByTheClientBehindAllProxies(t *testing.T) {
	a, err := newAccess(Config{Guard: server.Guard{Token: token}, Proxy: Proxy{Header: "X-Forwarded-User", From: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		from, forwarded, want string
	}{
		"nobody between":                 {"192.0.2.1", "", "192.0.2.1"},
		"who says so himself":            {"192.0.2.1", "203.0.113.9", "192.0.2.1"},
		"through a proxy":                {"10.1.0.1", "203.0.113.9, 192.0.2.1", "192.0.2.1"},
		"through two":                    {"10.1.0.1", "203.0.113.9, 192.0.2.1, 10.1.0.2", "192.0.2.1"},
		"through a proxy that says none": {"10.1.0.1", "", "10.1.0.1"},
		"through one that says nonsense": {"10.1.0.1", "192.0.2.1, unknown", "10.1.0.1"},
		"through one, by IPv6":           {"::ffff:10.1.0.1", "::ffff:192.0.2.1", "192.0.2.1"},
	} {
		r := httptest.NewRequest("POST", "/dashboard/login", nil)
		r.RemoteAddr = netip.AddrPortFrom(netip.MustParseAddr(tc.from), 4711).String()
		r.Header.Set("X-Forwarded-For", tc.forwarded)
		if got := a.origin(r); got.String() != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

func TestALeaseIsReleasedByWhoMayAlone(t *testing.T) {
	d := startDesk(t, nil)
	lease := d.lease("acme/widgets", "w1", "job-37")
	form := func(csrf string) url.Values {
		return url.Values{"repo": {"acme/widgets"}, "fence": {fmt.Sprint(lease.Fence())}, "csrf": {csrf}}
	}
	cookie, csrf := d.logIn()
	other, otherCSRF := d.logIn()
	with := func(header http.Header, name, value string) http.Header {
		header = header.Clone()
		header.Set(name, value)
		return header
	}
	const path = "/dashboard/leases/release"
	for name, tc := range map[string]struct {
		method string
		form   url.Values
		header http.Header
		status int
	}{
		"nobody":                      {"POST", form(csrf), nil, http.StatusUnauthorized},
		"a wrong token":               {"POST", form(""), http.Header{"Authorization": {"Bearer no"}}, http.StatusUnauthorized},
		"a session without its form":  {"POST", form(""), cookie, http.StatusForbidden},
		"the form of another session": {"POST", form(otherCSRF), cookie, http.StatusForbidden},
		"a form that was changed":     {"POST", form(csrf[1:] + "A"), cookie, http.StatusForbidden},
		"the other one's":             {"POST", form(csrf), other, http.StatusForbidden},
		"another site's page":         {"POST", form(csrf), with(cookie, "Sec-Fetch-Site", "cross-site"), http.StatusForbidden},
		"another origin's page":       {"POST", form(csrf), with(cookie, "Origin", "https://evil.example"), http.StatusForbidden},
		"a form in the address":       {"POST", url.Values{}, cookie, http.StatusForbidden},
		"a GET":                       {"GET", nil, nil, http.StatusSeeOther},
		"a PUT":                       {"PUT", form(csrf), cookie, http.StatusNotFound},
		"a form that is long":         {"POST", url.Values{"csrf": {strings.Repeat("a", maxForm)}}, cookie, http.StatusBadRequest},
		"another fence":               {"POST", url.Values{"repo": {"acme/widgets"}, "fence": {"1"}, "csrf": {csrf}}, cookie, http.StatusConflict},
		"no fence":                    {"POST", url.Values{"repo": {"acme/widgets"}, "csrf": {csrf}}, cookie, http.StatusBadRequest},
		"a path that escapes":         {"POST", url.Values{"repo": {"acme/.."}, "fence": {"1"}, "csrf": {csrf}}, cookie, http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			target := path
			if name == "a form in the address" {
				target += "?" + form(csrf).Encode()
			}
			resp, text := d.visit(tc.method, target, tc.form, tc.header)
			if resp.StatusCode != tc.status {
				t.Errorf("%d, want %d: %s", resp.StatusCode, tc.status, text)
			}
			if !d.held("acme/widgets") {
				t.Fatal("the lease is gone")
			}
		})
	}
	question := d.page(path+"?"+form("").Encode(), cookie)
	for _, want := range []string{"w1", "job-37", fmt.Sprint(lease.Fence())} {
		if !strings.Contains(question, want) {
			t.Errorf("the question does not say %s", want)
		}
	}
	resp, _ := d.visit("POST", path, form(csrf), cookie)
	if resp.StatusCode != http.StatusSeeOther {
		t.Errorf("with its form: %d", resp.StatusCode)
	}
	d.awaitFree("acme/widgets")
	if !strings.Contains(d.log.String(), `msg="lease taken away on the dashboard" by=token repo=acme/widgets`) {
		t.Errorf("the log: %s", d.log)
	}
	resp, _ = d.visit("POST", path, form(csrf), cookie)
	if resp.StatusCode != http.StatusConflict {
		t.Errorf("once more: %d, want 409", resp.StatusCode)
	}
	if strings.Contains(d.log.String(), token) {
		t.Error("the log has the token in it")
	}
}

func TestTheTokenAsABearerTokenNeedsNoForm(t *testing.T) {
	d := startDesk(t, nil)
	lease := d.lease("acme/widgets", "w1", "job-37")
	form := url.Values{"repo": {"acme/widgets"}, "fence": {fmt.Sprint(lease.Fence())}}
	if resp, text := d.visit("POST", "/dashboard/leases/release", form, bearer); resp.StatusCode != http.StatusSeeOther {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	d.awaitFree("acme/widgets")
}

func TestWithoutATokenThisMachineMayChangeThings(t *testing.T) {
	d := startDesk(t, func(cfg *Config) { cfg.Guard = server.Guard{Loopback: true} })
	lease := d.lease("acme/widgets", "w1", "job-37")
	form := url.Values{"repo": {"acme/widgets"}, "fence": {fmt.Sprint(lease.Fence())}}
	if resp, _ := d.visit("POST", "/dashboard/leases/release", form, nil); resp.StatusCode != http.StatusForbidden || !d.held("acme/widgets") {
		t.Errorf("without a form: %d, want 403", resp.StatusCode)
	}
	form.Set("csrf", csrfOf(t, d.page("/", nil)))
	if resp, _ := d.visit("POST", "/dashboard/leases/release", form, http.Header{"Host": {"rebound.example"}}); resp.StatusCode != http.StatusUnauthorized || !d.held("acme/widgets") {
		t.Errorf("by another name: %d, want 401", resp.StatusCode)
	}
	if resp, _ := d.visit("POST", "/dashboard/leases/release", form, nil); resp.StatusCode != http.StatusSeeOther {
		t.Errorf("with a form: %d", resp.StatusCode)
	}
	d.awaitFree("acme/widgets")
	if page := d.page("/dashboard/login", http.Header{"Host": {"elsewhere.example"}}); !strings.Contains(page, "There is no API token to log in with") {
		t.Error("the login does not say that there is nothing to log in with")
	}
}

func TestTheHeaderOfATrustedProxyIsBelievedAlone(t *testing.T) {
	d := startDesk(t, func(cfg *Config) {
		cfg.Proxy = Proxy{Header: "X-Forwarded-User", From: []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}}
	})
	from := func(address string) string {
		req, _ := http.NewRequest("GET", d.url+"/", nil)
		req.Header.Set("X-Forwarded-User", "ada")
		resp, err := dialFrom(address).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var b strings.Builder
		if _, err := fmt.Fprint(&b, resp.StatusCode); err != nil {
			t.Fatal(err)
		}
		text := make([]byte, 1<<20)
		n := 0
		for {
			m, err := resp.Body.Read(text[n:])
			if n += m; err != nil {
				return string(text[:n])
			}
		}
	}
	const may = "You may make changes."
	if page := from("127.0.0.2"); !strings.Contains(page, may) || !strings.Contains(page, ">ada<") {
		t.Error("the proxy's user may change nothing")
	}
	if page := from("127.0.0.3"); strings.Contains(page, may) {
		t.Error("the header is believed of anybody")
	}
}

func TestLogin(t *testing.T) {
	d := startDesk(t, nil)
	post := func(form url.Values, header http.Header) *http.Response {
		resp, _ := d.visit("POST", "/dashboard/login", form, header)
		return resp
	}
	for next, want := range map[string]string{
		"/dashboard/dead?repo=acme/widgets": "/dashboard/dead?repo=acme/widgets", "/": "/", "": "/",
		"https://evil.example/": "/", "//evil.example": "/", `/\evil.example`: "/", "/dashboard/logout": "/", "/api/v1/locks": "/",
		"/dashboard/../api": "/", "javascript:alert(1)": "/", "/dashboard/x\r\nSet-Cookie: a=b": "/",
	} {
		if got := post(url.Values{"token": {token}, "next": {next}}, nil).Header.Get("Location"); got != want {
			t.Errorf("next %q leads to %q, want %q", next, got, want)
		}
	}
	c := post(url.Values{"token": {token}}, nil).Cookies()[0]
	if c.Name != "lockstep" || !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Secure || c.Path != "/" || c.MaxAge != 12*3600 {
		t.Errorf("cookie %v", c)
	}
	https := http.Header{"Origin": {strings.Replace(d.url, "http:", "https:", 1)}, "Sec-Fetch-Site": {"same-origin"}}
	if c := post(url.Values{"token": {token}}, https).Cookies()[0]; c.Name != "__Host-lockstep" || !c.Secure {
		t.Errorf("to a browser that speaks TLS: %v", c)
	}
	if resp := post(url.Values{"token": {token}}, http.Header{"Sec-Fetch-Site": {"cross-site"}}); resp.StatusCode != http.StatusForbidden {
		t.Errorf("from another site: %d", resp.StatusCode)
	}
	for range attemptsEach {
		if resp := post(url.Values{"token": {"wrong"}}, nil); resp.StatusCode != http.StatusUnauthorized || len(resp.Cookies()) != 0 {
			t.Fatalf("a wrong token: %d %v", resp.StatusCode, resp.Cookies())
		}
	}
	if resp := post(url.Values{"token": {token}}, nil); resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("after many wrong ones: %d, want 429", resp.StatusCode)
	}
	if !strings.Contains(d.log.String(), "dashboard login refused") || strings.Contains(d.log.String(), token) || strings.Contains(d.log.String(), "wrong") {
		t.Errorf("the log: %s", d.log)
	}
}

func TestWrongTokensAreCountedByTheMinuteAndByAddress(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	a := newAttempts()
	a.now = func() time.Time { return now }
	one, near, other := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2"), netip.MustParseAddr("192.0.2.1")
	for range attemptsEach {
		if !a.allowed(one) {
			t.Fatal("refused too early")
		}
		a.failed(one)
	}
	if a.allowed(one) || a.allowed(near) || !a.allowed(other) {
		t.Error("want the network refused, and no other")
	}
	now = now.Add(time.Minute)
	if !a.allowed(one) {
		t.Error("refused for ever")
	}
	for i := range attemptsAll {
		a.failed(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}))
	}
	if a.allowed(other) {
		t.Error("there is no limit to all of them")
	}
	if len(a.by) > attemptsAll {
		t.Errorf("%d addresses are remembered", len(a.by))
	}
}

func TestLogoutEndsTheSessionInTheBrowser(t *testing.T) {
	d := startDesk(t, nil)
	cookie, csrf := d.logIn()
	if resp, _ := d.visit("POST", "/dashboard/logout", url.Values{}, cookie); resp.StatusCode != http.StatusForbidden {
		t.Errorf("without its form: %d", resp.StatusCode)
	}
	resp, _ := d.visit("POST", "/dashboard/logout", url.Values{"csrf": {csrf}}, cookie)
	for _, c := range resp.Cookies() {
		if c.Name == "lockstep" && c.MaxAge < 0 {
			return
		}
	}
	t.Errorf("%d %v", resp.StatusCode, resp.Cookies())
}

func TestASessionIsGoodOnAllReplicasUntilTheTokenChanges(t *testing.T) {
	make := func(token, realm string) sessions {
		s, err := newSessions(token, realm)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	cookieOf := func(s sessions) *http.Cookie {
		w := httptest.NewRecorder()
		s.begin(w, true)
		return w.Result().Cookies()[0]
	}
	good := func(s sessions, c *http.Cookie) bool {
		r := httptest.NewRequest("GET", "/", nil)
		r.AddCookie(c)
		_, ok := s.read(r)
		return ok
	}
	s := make(token, "a")
	c := cookieOf(s)
	if !good(s, c) || !good(make(token, "a"), c) {
		t.Error("a session is not good on another replica")
	}
	if good(make("another token", "a"), c) || good(make(token, "b"), c) || good(make("", "a"), c) {
		t.Error("a session is good where it should not be")
	}
	if none := make("", "a"); good(none, cookieOf(none)) {
		t.Error("without a token there is a session")
	}
	for i := range c.Value {
		changed := []byte(c.Value)
		changed[i] ^= 1
		if forged := (&http.Cookie{Name: c.Name, Value: string(changed)}); good(s, forged) && decoded(forged.Value) != decoded(c.Value) {
			t.Fatalf("a cookie with letter %d changed is good", i)
		}
	}
	if got := s.proof("session 1"); got == s.proof("session 2") || got == make("another token", "a").proof("session 1") || !s.madeFor("session 1", got) {
		t.Error("a form is not bound to its session")
	}
}
