package events

import (
	"encoding/json"
	"regexp"
	"slices"
)

var (
	changeTypes = []ChangeType{ChangePushed, changePinned, changeSubmodules, ChangeRemoved, ChangeMoved, ChangeDue}
	resultTypes = []ResultType{ResultSynced, ResultFailed, ResultRemoved, ResultMoved, ResultPolled, ResultView, ResultPurged}

	changeType = regexp.MustCompile(`^lockstep\.change\.[a-z_]{1,40}\.v[1-9][0-9]{0,3}$`)
	resultType = regexp.MustCompile(`^lockstep\.result\.[a-z_]{1,40}\.v[1-9][0-9]{0,3}$`)
)

// newer returns an error if the document's type matches our naming scheme but is unknown to this version. It takes
// precedence over other parse errors, which a newer format would explain.
func newer[T ~string](document []byte, ours *regexp.Regexp, known []T) error {
	var probe struct {
		Type string `json:"type"`
	}
	if json.Unmarshal(document, &probe) != nil || !ours.MatchString(probe.Type) || slices.Contains(known, T(probe.Type)) {
		return nil
	}
	return Errorf(Contention, ClassNewer, "type %s came after this version; it is for a newer one", probe.Type)
}
