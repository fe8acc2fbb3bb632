package dashboard

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/internal/server"
)

func TestAuthentication(t *testing.T) {
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
		"anonymous":                         {server.Guard{Token: fixed(token)}, Proxy{}, "192.0.2.1", "", nil, ""},
		"the token":                         {server.Guard{Token: fixed(token)}, Proxy{}, "192.0.2.1", "", bearer, "token"},
		"a wrong token":                     {server.Guard{Token: fixed(token)}, Proxy{}, "192.0.2.1", "", http.Header{"Authorization": {"Bearer no"}}, ""},
		"the token with another scheme":     {server.Guard{Token: fixed(token)}, Proxy{}, "192.0.2.1", "", http.Header{"Authorization": {"Basic " + token}}, ""},
		"local, but a token is configured":  {server.Guard{Token: fixed(token), Loopback: true}, Proxy{}, "127.0.0.1", "localhost", nil, ""},
		"local without a token":             {server.Guard{Loopback: true}, Proxy{}, "127.0.0.1", "localhost:8080", nil, "localhost"},
		"local through a proxy":             {server.Guard{Loopback: true}, Proxy{}, "127.0.0.1", "localhost", http.Header{"X-Forwarded-For": {"192.0.2.1"}}, ""},
		"local with a rebound DNS name":     {server.Guard{Loopback: true}, Proxy{}, "127.0.0.1", "evil.example", nil, ""},
		"remote without a token":            {server.Guard{}, Proxy{}, "192.0.2.1", "localhost", nil, ""},
		"no token and an empty one given":   {server.Guard{}, Proxy{}, "192.0.2.1", "", http.Header{"Authorization": {"Bearer "}}, ""},
		"the proxy's user":                  {server.Guard{Token: fixed(token)}, proxy, "10.1.2.3", "", http.Header{"X-Forwarded-User": {"bob"}}, "bob"},
		"the proxy's user over IPv6":        {server.Guard{Token: fixed(token)}, proxy, "::ffff:10.1.2.3", "", http.Header{"X-Forwarded-User": {"bob"}}, "bob"},
		"the header from elsewhere":         {server.Guard{Token: fixed(token)}, proxy, "10.2.2.3", "", http.Header{"X-Forwarded-User": {"bob"}}, ""},
		"the header twice":                  {server.Guard{Token: fixed(token)}, proxy, "10.1.2.3", "", http.Header{"X-Forwarded-User": {"bob", "ada"}}, ""},
		"an empty header":                   {server.Guard{Token: fixed(token)}, proxy, "10.1.2.3", "", http.Header{"X-Forwarded-User": {" "}}, ""},
		"a header with a control character": {server.Guard{Token: fixed(token)}, proxy, "10.1.2.3", "", http.Header{"X-Forwarded-User": {"bob\u202eada"}}, ""},
		"a very long header":                {server.Guard{Token: fixed(token)}, proxy, "10.1.2.3", "", http.Header{"X-Forwarded-User": {strings.Repeat("b", 201)}}, ""},
		"a listed user":                     {server.Guard{Token: fixed(token)}, some, "10.1.2.3", "", http.Header{"X-Forwarded-User": {"ada"}}, "ada"},
		"an unlisted user":                  {server.Guard{Token: fixed(token)}, some, "10.1.2.3", "", http.Header{"X-Forwarded-User": {"bob"}}, ""},
		"a user in another case":            {server.Guard{Token: fixed(token)}, some, "10.1.2.3", "", http.Header{"X-Forwarded-User": {"Ada"}}, ""},
		"the token through the proxy":       {server.Guard{Token: fixed(token)}, proxy, "10.1.2.3", "", bearer, "token"},
		"through the proxy as localhost":    {server.Guard{Loopback: true}, proxy, "10.1.2.3", "localhost", nil, ""},
		"the header without a proxy":        {server.Guard{Token: fixed(token)}, Proxy{}, "10.1.2.3", "", http.Header{"X-Forwarded-User": {"ada"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAccess(Config{Guard: tc.guard, Proxy: tc.proxy})
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
			// Another site can make a browser send requests, so its forms need a CSRF token; clients that send the API token do not.
			if v.admin() && (v.binding == "") != (tc.header.Get("Authorization") != "") {
				t.Errorf("forms are bound to %q", v.binding)
			}
		})
	}
}

func TestOriginSkipsTrustedProxies(t *testing.T) {
	a := newAccess(Config{Guard: server.Guard{Token: fixed(token)}, Proxy: Proxy{Header: "X-Forwarded-User", From: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}})
	for name, tc := range map[string]struct {
		from, forwarded, want string
	}{
		"direct":                         {"192.0.2.1", "", "192.0.2.1"},
		"header from the client itself":  {"192.0.2.1", "203.0.113.9", "192.0.2.1"},
		"through a proxy":                {"10.1.0.1", "203.0.113.9, 192.0.2.1", "192.0.2.1"},
		"through two proxies":            {"10.1.0.1", "203.0.113.9, 192.0.2.1, 10.1.0.2", "192.0.2.1"},
		"through a proxy without header": {"10.1.0.1", "", "10.1.0.1"},
		"through a proxy, bad header":    {"10.1.0.1", "192.0.2.1, unknown", "10.1.0.1"},
		"through a proxy, over IPv6":     {"::ffff:10.1.0.1", "::ffff:192.0.2.1", "192.0.2.1"},
	} {
		r := httptest.NewRequest("POST", "/dashboard/login", nil)
		r.RemoteAddr = netip.AddrPortFrom(netip.MustParseAddr(tc.from), 4711).String()
		r.Header.Set("X-Forwarded-For", tc.forwarded)
		if got := a.origin(r); got.String() != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

func TestOnlyAdminsReleaseLeases(t *testing.T) {
	t.Parallel()
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
		"anonymous":                {"POST", form(csrf), nil, http.StatusUnauthorized},
		"a wrong token":            {"POST", form(""), http.Header{"Authorization": {"Bearer no"}}, http.StatusUnauthorized},
		"no CSRF token":            {"POST", form(""), cookie, http.StatusForbidden},
		"another session's token":  {"POST", form(otherCSRF), cookie, http.StatusForbidden},
		"a changed CSRF token":     {"POST", form(csrf[1:] + "A"), cookie, http.StatusForbidden},
		"the token in another one": {"POST", form(csrf), other, http.StatusForbidden},
		"another site's page":      {"POST", form(csrf), with(cookie, "Sec-Fetch-Site", "cross-site"), http.StatusForbidden},
		"another origin's page":    {"POST", form(csrf), with(cookie, "Origin", "https://evil.example"), http.StatusForbidden},
		"the form in the URL":      {"POST", url.Values{}, cookie, http.StatusForbidden},
		"a GET":                    {"GET", nil, nil, http.StatusSeeOther},
		"a PUT":                    {"PUT", form(csrf), cookie, http.StatusNotFound},
		"a form that is too long":  {"POST", url.Values{"csrf": {strings.Repeat("a", maxForm)}}, cookie, http.StatusBadRequest},
		"another fence":            {"POST", url.Values{"repo": {"acme/widgets"}, "fence": {"1"}, "csrf": {csrf}}, cookie, http.StatusConflict},
		"no fence":                 {"POST", url.Values{"repo": {"acme/widgets"}, "csrf": {csrf}}, cookie, http.StatusBadRequest},
		"a path with dots":         {"POST", url.Values{"repo": {"acme/.."}, "fence": {"1"}, "csrf": {csrf}}, cookie, http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			target := path
			if name == "the form in the URL" {
				target += "?" + form(csrf).Encode()
			}
			resp, text := d.visit(tc.method, target, tc.form, tc.header)
			if resp.StatusCode != tc.status {
				t.Errorf("%d, want %d: %s", resp.StatusCode, tc.status, text)
			}
			if !d.held("acme/widgets") {
				t.Fatal("the lease was released")
			}
		})
	}
	question := d.page(path+"?"+form("").Encode(), cookie)
	for _, want := range []string{"w1", "job-37", fmt.Sprint(lease.Fence())} {
		if !strings.Contains(question, want) {
			t.Errorf("the confirmation does not contain %s", want)
		}
	}
	resp, _ := d.visit("POST", path, form(csrf), cookie)
	if resp.StatusCode != http.StatusSeeOther {
		t.Errorf("with a valid form: %d", resp.StatusCode)
	}
	d.awaitFree("acme/widgets")
	if !strings.Contains(d.log.String(), `msg="lease taken away on the dashboard" by=token repo=acme/widgets`) {
		t.Errorf("the log: %s", d.log)
	}
	resp, _ = d.visit("POST", path, form(""), bearer) // needs no CSRF token
	if resp.StatusCode != http.StatusConflict {
		t.Errorf("released again: %d, want 409", resp.StatusCode)
	}
	if strings.Contains(d.log.String(), token) {
		t.Error("the log contains the token")
	}
}

func TestLocalUserIsAdminWithoutToken(t *testing.T) {
	t.Parallel()
	d := startDesk(t, func(cfg *Config) { cfg.Guard = server.Guard{Loopback: true} })
	lease := d.lease("acme/widgets", "w1", "job-37")
	form := url.Values{"repo": {"acme/widgets"}, "fence": {fmt.Sprint(lease.Fence())}}
	if resp, _ := d.visit("POST", "/dashboard/leases/release", form, nil); resp.StatusCode != http.StatusForbidden || !d.held("acme/widgets") {
		t.Errorf("without a CSRF token: %d, want 403", resp.StatusCode)
	}
	form.Set("csrf", csrfOf(t, d.page("/", nil)))
	if resp, _ := d.visit("POST", "/dashboard/leases/release", form, http.Header{"Host": {"rebound.example"}}); resp.StatusCode != http.StatusUnauthorized || !d.held("acme/widgets") {
		t.Errorf("with another host name: %d, want 401", resp.StatusCode)
	}
	if resp, _ := d.visit("POST", "/dashboard/leases/release", form, nil); resp.StatusCode != http.StatusSeeOther {
		t.Errorf("with a CSRF token: %d", resp.StatusCode)
	}
	d.awaitFree("acme/widgets")
	if page := d.page("/dashboard/login", http.Header{"Host": {"elsewhere.example"}}); !strings.Contains(page, "No API token is configured") {
		t.Error("the login page does not say that there is no token to log in with")
	}
}

func TestLogin(t *testing.T) {
	t.Parallel()
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
		t.Errorf("cookie over TLS: %v", c)
	}
	if resp := post(url.Values{"token": {token}}, http.Header{"Sec-Fetch-Site": {"cross-site"}}); resp.StatusCode != http.StatusForbidden {
		t.Errorf("from another site: %d", resp.StatusCode)
	}
	for range maxAttemptsPerNetwork {
		if resp := post(url.Values{"token": {"wrong"}}, nil); resp.StatusCode != http.StatusUnauthorized || len(resp.Cookies()) != 0 {
			t.Fatalf("a wrong token: %d %v", resp.StatusCode, resp.Cookies())
		}
	}
	if resp := post(url.Values{"token": {"wrong"}}, nil); resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("after many wrong tokens: %d, want 429", resp.StatusCode)
	}
	// Behind a proxy that is not trusted, others share the address.
	if resp := post(url.Values{"token": {token}}, nil); resp.StatusCode != http.StatusSeeOther || len(resp.Cookies()) == 0 {
		t.Errorf("the right token after many wrong ones: %d", resp.StatusCode)
	}
	if !strings.Contains(d.log.String(), "dashboard login refused") || strings.Contains(d.log.String(), token) || strings.Contains(d.log.String(), "wrong") {
		t.Errorf("the log: %s", d.log)
	}
}

// TestLogoutEndsSessionEverywhere uses a copy of the cookie at two replicas.
func TestLogoutEndsSessionEverywhere(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	replica := (&desk{t: t, redis: d.redis, client: d.client, log: d.log}).open(nil)
	cookie, csrf := d.logIn()
	other, _ := d.logIn()
	admin := func(at *desk, cookie http.Header) bool {
		return strings.Contains(at.page("/", cookie), "You may make changes.")
	}
	if !admin(d, cookie) || !admin(replica, cookie) {
		t.Fatal("the session is not valid")
	}
	if resp, _ := d.visit("POST", "/dashboard/logout", url.Values{}, cookie); resp.StatusCode != http.StatusForbidden {
		t.Errorf("without a CSRF token: %d", resp.StatusCode)
	}
	resp, text := d.visit("POST", "/dashboard/logout", url.Values{"csrf": {csrf}}, cookie)
	deleted := func(c *http.Cookie) bool { return c.Name == plainCookie && c.MaxAge < 0 }
	if resp.StatusCode != http.StatusSeeOther || !slices.ContainsFunc(resp.Cookies(), deleted) {
		t.Fatalf("logout: %d %v %s", resp.StatusCode, resp.Cookies(), text)
	}
	if admin(d, cookie) || admin(replica, cookie) {
		t.Error("a copy of the cookie is valid after the logout")
	}
	if !admin(d, other) || !admin(replica, other) {
		t.Error("the logout ended another session")
	}
	keys := d.client.Keys(t.Context(), "*:ended:*").Val()
	if len(keys) != 1 || d.client.TTL(t.Context(), keys[0]).Val() < 11*time.Hour {
		t.Errorf("keys %q: want one that expires with the session", keys)
	}
}

// TestLogoutEndsAllSessionsOfARequest has the cookies of two logins, over HTTP and HTTPS, in both orders.
func TestLogoutEndsAllSessionsOfARequest(t *testing.T) {
	t.Parallel()
	d := startDesk(t, nil)
	admin := func(cookie http.Header) bool { return strings.Contains(d.page("/", cookie), "You may make changes.") }
	for _, names := range [][]string{{secureCookie, plainCookie}, {plainCookie, secureCookie}} {
		one, csrfOne := d.logIn()
		two, csrfTwo := d.logIn()
		value := func(cookie http.Header) string {
			_, value, _ := strings.Cut(cookie.Get("Cookie"), "=")
			return value
		}
		both := http.Header{"Cookie": {names[0] + "=" + value(one) + "; " + names[1] + "=" + value(two)}}
		csrf := csrfOne // of the secure cookie, which is read first
		if names[0] == plainCookie {
			csrf = csrfTwo
		}
		if resp, text := d.visit("POST", "/dashboard/logout", url.Values{"csrf": {csrf}}, both); resp.StatusCode != http.StatusSeeOther {
			t.Fatalf("logout: %d %s", resp.StatusCode, text)
		}
		if admin(one) || admin(two) || admin(both) {
			t.Errorf("%v: a session is valid after the logout: %v, %v", names, admin(one), admin(two))
		}
	}
	one, csrf := d.logIn()
	two, _ := d.logIn()
	d.visit("POST", "/dashboard/logout", url.Values{"csrf": {csrf}}, one)
	if !admin(http.Header{"Cookie": {one.Get("Cookie") + "; " + two.Get("Cookie")}}) {
		t.Error("a cookie of an ended session hides a valid one")
	}
}

func TestFailedLoginLimits(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	a := newAttempts()
	a.now = func() time.Time { return now }
	one, near, other := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2"), netip.MustParseAddr("192.0.2.1")
	for range maxAttemptsPerNetwork {
		if !a.allowed(one) {
			t.Fatal("refused too early")
		}
		a.failed(one)
	}
	if a.allowed(one) || a.allowed(near) || !a.allowed(other) {
		t.Error("want the /64 network refused, and no other")
	}
	now = now.Add(time.Minute)
	if !a.allowed(one) {
		t.Error("refused in the next minute")
	}
	for i := range maxAttempts {
		a.failed(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}))
	}
	if a.allowed(other) {
		t.Error("the total limit does not apply")
	}
	if len(a.perNetwork) > maxAttempts {
		t.Errorf("%d networks are remembered", len(a.perNetwork))
	}
}

func TestSessionIsValidOnAllReplicasUntilTheTokenChanges(t *testing.T) {
	make := func(token, realm string) sessions {
		return newSessions(server.Guard{Token: fixed(token)}, realm)
	}
	cookieOf := func(s sessions) *http.Cookie {
		w := httptest.NewRecorder()
		s.start(w, true)
		return w.Result().Cookies()[0]
	}
	valid := func(s sessions, c *http.Cookie) bool {
		r := httptest.NewRequest("GET", "/", nil)
		r.AddCookie(c)
		return len(s.read(r)) > 0
	}
	s := make(token, "a")
	c := cookieOf(s)
	if !valid(s, c) || !valid(make(token, "a"), c) {
		t.Error("a session is not valid on another replica")
	}
	if valid(make("another token", "a"), c) || valid(make(token, "b"), c) || valid(make("", "a"), c) {
		t.Error("a session is valid with another token or realm")
	}
	if none := make("", "a"); valid(none, cookieOf(none)) {
		t.Error("a session is valid without a token")
	}
	present := token
	rotated := newSessions(server.Guard{Token: func() string { return present }}, "a")
	before := cookieOf(rotated)
	if present = "the next token"; valid(rotated, before) || !valid(rotated, cookieOf(rotated)) {
		t.Error("a session outlives the token that it began with, or none begins with the next one")
	}
	for i := range c.Value {
		changed := []byte(c.Value)
		changed[i] ^= 1
		if forged := (&http.Cookie{Name: c.Name, Value: string(changed)}); valid(s, forged) && decoded(forged.Value) != decoded(c.Value) {
			t.Fatalf("a cookie with byte %d changed is valid", i)
		}
	}
	if got := s.csrfToken("session 1"); got == s.csrfToken("session 2") || got == make("another token", "a").csrfToken("session 1") || !s.validCSRF("session 1", got) {
		t.Error("a form is not bound to its session")
	}
}
