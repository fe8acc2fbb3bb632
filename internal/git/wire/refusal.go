package wire

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"lockstep/events"
	"lockstep/internal/egress"
)

// refusal is what a remote says in words, or by an exit status alone: neither Git's own protocol nor SSH
// has status codes that tell. The words decide on the class, and are not repeated.
type refusal struct {
	class  events.Class // ClassAuth, ClassNotFound or ClassServer
	status int          // of git-upload-pack's exit; 0 when it is not known
}

func (e *refusal) Error() string { return "the remote refuses" }

// These are the words of Git, GitHub, GitLab, Bitbucket, Azure DevOps and Gitea. A sentence must speak of
// the repository: a shell, too, says "not found", and Remove takes it at its word.
var (
	saysNotFound = regexp.MustCompile(`(?i)\b(repository|project)\b.*(not found|not exist|not be found)|` +
		`no such repository|cannot find repository|does not appear to be a git repository`)
	saysNoAccess = regexp.MustCompile(`(?i)access denied|permission denied|forbidden|unauthori[sz]ed|not authori[sz]ed|` +
		`authentication (failed|required)|(not have|insufficient) (permission|access)`)
)

// refusalOf classifies a refusal. Once refs have been listed the repository is there, whatever it says.
func refusalOf(text string, listing bool) *refusal {
	for line := range strings.Lines(text) {
		switch {
		case listing && saysNotFound.MatchString(line):
			return &refusal{class: events.ClassNotFound}
		case saysNoAccess.MatchString(line):
			return &refusal{class: events.ClassAuth}
		}
	}
	return &refusal{class: events.ClassServer}
}

func (e *refusal) classify(host string, auth Auth) error {
	switch {
	case e.class == events.ClassAuth && auth.IsZero():
		return events.Errorf(events.Permanent, events.ClassAuth, "%s wants a credential: name one in the change", host)
	case e.class == events.ClassAuth:
		return events.Errorf(events.Permanent, events.ClassAuth,
			"%s refused the credential; check that it is current and may read the repository", host)
	case e.class == events.ClassNotFound:
		return events.Errorf(events.Permanent, events.ClassNotFound,
			"%s has no such repository, or hides it from this credential", host)
	case e.status != 0:
		return events.Errorf(events.Retryable, events.ClassServer, "git-upload-pack failed at %s (exit status %d)", host, e.status)
	}
	return events.Errorf(events.Retryable, events.ClassServer, "%s answered with an error of Git's protocol", host)
}

// notDialled says that the settings do not let a host be dialled, on the way to host.
func notDialled(host string, fault *egress.Fault) error {
	asked := (&egress.Fault{Host: hostOnly(host), Why: fault.Why}).Error()
	if egress.CanonicalHost(fault.Host) != egress.CanonicalHost(hostOnly(host)) { // the remote named it
		asked = fmt.Sprintf("%s redirects to a host that %s", host, fault.Why)
	}
	return events.Errorf(events.Permanent, events.ClassConfig, "%s", asked)
}

// hostOnly returns the host of host:port.
func hostOnly(host string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.HasSuffix(host, "]") {
		host = host[:i]
	}
	return strings.Trim(host, "[]")
}

// errLine returns the text of the first error among the pkt-lines that head begins with, or "".
func errLine(head []byte) string {
	for len(head) >= 4 {
		length, err := strconv.ParseUint(string(head[:4]), 16, 16)
		switch {
		case err == nil && length == 0:
			length = 4 // a flush
		case err != nil || length < 4 || int(length) > len(head):
			return ""
		}
		if text, ok := strings.CutPrefix(string(head[4:length]), "ERR "); ok {
			return text
		}
		head = head[length:]
	}
	return ""
}
