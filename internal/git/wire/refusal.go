package wire

import (
	"fmt"
	"regexp"
	"strings"

	"lockstep/internal/egress"
	"lockstep/internal/git"
)

// refusal is an error that a remote reports as text or as an exit status, since neither Git protocol nor SSH has
// status codes. The text decides the class and is not repeated.
type refusal struct {
	class  git.Class // ClassAuth, ClassBusy, ClassNotFound or ClassServer
	status int       // exit status of git-upload-pack; 0 if unknown
}

func (e *refusal) Error() string { return "the remote refused the request" }

// Messages of Git, GitHub, GitLab, Bitbucket, Azure DevOps and Gitea. A line must mention the repository: a shell also
// prints "not found", and a repository that is not found may be removed.
var (
	notFoundText = regexp.MustCompile(`(?i)\b(repository|project)\b.*(not found|not exist|not be found)|` +
		`no such repository|cannot find repository|does not appear to be a git repository`)
	noAccessText = regexp.MustCompile(`(?i)access denied|permission (to .*)?denied|forbidden|unauthori[sz]ed|not authori[sz]ed|` +
		`authentication (failed|required)|(not have|insufficient) (permission|access)|\bSAML (SSO|single sign)|` +
		`\bDMCA (takedown|notice)|\bIP allow ?list\b|\byour IP address\b|` +
		`\b(account|access|repository|project|organi[sz]ation)\b.* (is|was|are|has been|have been) (suspended|disabled|blocked)\b`)
	transientText = regexp.MustCompile(`(?i)maintenance|migrat(ed|ion|ing)|temporarily (disabled|unavailable|locked)`)
	limitText     = regexp.MustCompile(`(?i)\brate limit(s|ed|ing)? (has been |is |was )?(exceeded|reached|hit)|exceeded .{0,40}\brate limit|` +
		`too many (requests|connections)|temporarily (blocked|banned)|retry later`)
)

// refusalOf classifies the text of a refusal. Only the list of refs can prove that a repository does not exist.
func refusalOf(text string, listing bool) *refusal {
	for line := range strings.Lines(text) {
		switch {
		case transientText.MatchString(line):
		case listing && notFoundText.MatchString(line):
			return &refusal{class: git.ClassNotFound}
		case noAccessText.MatchString(line):
			return &refusal{class: git.ClassAuth}
		case limitText.MatchString(line):
			return &refusal{class: git.ClassBusy}
		}
	}
	return &refusal{class: git.ClassServer}
}

func (e *refusal) classify(host string, auth Auth) error {
	switch {
	case e.class == git.ClassBusy:
		return git.Errorf(git.Retryable, git.ClassBusy, "%s limits the request rate", host)
	case e.class == git.ClassAuth && auth.IsZero():
		return credentialRequired(host)
	case e.class == git.ClassAuth:
		return git.Errorf(git.Permanent, git.ClassAuth,
			"%s refused %s; check that it is current and may read the repository", host, auth.named())
	case e.class == git.ClassNotFound:
		return git.Errorf(git.Permanent, git.ClassNotFound,
			"%s has no such repository, or %s may not read it", host, auth.named())
	case e.status != 0:
		return git.Errorf(git.Retryable, git.ClassServer, "git-upload-pack failed at %s (exit status %d)", host, e.status)
	}
	return git.Errorf(git.Retryable, git.ClassServer,
		"%s refused the request with a Git protocol error; see the server's log", host)
}

// hostRefused returns the error for a host that the settings do not allow, during a request to host.
func hostRefused(host string, fault *egress.Fault) error {
	text := (&egress.Fault{Host: hostname(host), Why: fault.Why}).Error()
	if egress.CanonicalHost(fault.Host) != egress.CanonicalHost(hostname(host)) { // the target of a redirect
		text = fmt.Sprintf("%s redirects to a host that %s", host, fault.Why)
	}
	return git.Errorf(git.Permanent, git.ClassConfig, "%s", text)
}

// hostname returns the host of host:port.
func hostname(host string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		host = host[:i]
	}
	return strings.Trim(host, "[]")
}
