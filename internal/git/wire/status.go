package wire

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"

	"lockstep/internal/egress"
)

// statusError is an HTTP status that is neither success nor a redirect.
type statusError struct {
	code       int
	limited    bool          // rate limited
	retryAfter time.Duration // requested by the server if limited; 0 for none
}

func (e statusError) Error() string { return fmt.Sprintf("HTTP status %d", e.code) }

// isLasting reports whether the status says that the request is wrong: to repeat it is no use. Some are of the moment, and
// what load balancers have made up is not known.
func (e statusError) isLasting() bool {
	switch e.code {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusMisdirectedRequest, http.StatusLocked, http.StatusTooEarly:
		return false
	}
	return e.code >= 400 && e.code <= http.StatusRequestHeaderFieldsTooLarge
}

// statusOf returns the error for a response. Some servers limit the request rate with status 403 or 503; a firewall in
// front of a forge says so only in its page.
func statusOf(res *http.Response, now time.Time) statusError {
	e := statusError{code: res.StatusCode}
	limit := egress.ReadRateLimit(res.Header, now)
	switch res.StatusCode {
	case http.StatusTooManyRequests:
		e.limited = true
	case http.StatusForbidden:
		e.limited = res.Header.Get("Retry-After") != "" || limit.Remaining == 0 || limitText.Match(startOf(res))
	case http.StatusServiceUnavailable:
		e.limited = res.Header.Get("Retry-After") != "" || limit.Remaining == 0
	}
	if e.limited {
		e.retryAfter = limit.Wait()
	}
	return e
}

// startOf reads the start of a response. The caller limits the time.
func startOf(res *http.Response) []byte {
	if res.Body == nil {
		return nil
	}
	start, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10)) // whatever could be read
	return start
}

// What login pages have, and their paths, to which they are redirected.
var (
	passwordField = regexp.MustCompile(`(?i)<input\b[^>]*\btype=["']?password`)
	loginPath     = regexp.MustCompile(`(?i)\b(log|sign)[-_]?(in|on)\b|\b(sso|saml2?|oauth2?|idp|adfs|openid)\b`)
)

// pageFault says what a web page in place of an answer means: that a credential is refused or missing, if it is one to
// log in, or asked for by status 203 as Azure DevOps does.
func pageFault(res *http.Response) error {
	path := res.Request.URL.Path
	isAway := !strings.HasSuffix(path, infoRefsPath) && !strings.HasSuffix(path, uploadPackPath)
	if res.StatusCode == http.StatusNonAuthoritativeInfo || isAway && loginPath.MatchString(path) ||
		passwordField.Match(startOf(res)) {
		return errLoginPage
	}
	return errWebPage
}
