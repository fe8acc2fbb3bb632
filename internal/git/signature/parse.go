package signature

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Limits.
const (
	MaxObject    = 4 << 20  // bytes of an object that is verified
	maxSignature = 64 << 10 // bytes
)

// Kind is the kind of a signed object, as git names it.
type Kind string

// The kinds.
const (
	Commit Kind = "commit"
	Tag    Kind = "tag"
)

// Format is the hash of a repository's object IDs. It determines where a signature is.
type Format string

// The formats.
const (
	SHA1   Format = "sha1"
	SHA256 Format = "sha256"
)

// header returns the header of a commit that has the signature of objects of the format.
func (f Format) header() string {
	if f == SHA256 {
		return "gpgsig-sha256"
	}
	return "gpgsig"
}

// Object is a commit or tag, separated into its payload and its signature.
type Object struct {
	Kind      Kind
	Payload   []byte    // what is signed
	Signature []byte    // "" if it is not signed
	Parents   []string  // of a commit
	Name      string    // of a tag
	Target    string    // what a tag points to
	Time      time.Time // committer's or tagger's date; zero if there is none

	badTime bool
	several bool // it has more than one signature
}

var errNotAnObject = errors.New("not a commit or tag")

// Parse separates a commit or tag.
func Parse(kind Kind, content []byte, format Format) (Object, error) {
	o := Object{Kind: kind}
	switch kind {
	case Commit:
		o.splitCommit(content, format)
	case Tag:
		o.splitTag(content)
	default:
		return Object{}, fmt.Errorf("%w: %.20q", errNotAnObject, kind)
	}
	o.readHeaders()
	return o, nil
}

// splitCommit separates the header with the signature from the rest, as git does: the signature of objects of
// another format is part of neither.
func (o *Object) splitCommit(content []byte, format Format) {
	inSignature, inOther := false, false
	own := format.header() + " "
	for len(content) > 0 {
		line, rest := cutLine(content)
		text, isSignature := strings.CutPrefix(string(line[:min(len(line), len(own))]), own)
		switch {
		case inSignature && line[0] == ' ':
			o.Signature = append(o.Signature, line[1:]...)
			content = rest
			continue
		case isSignature && text == "":
			o.several = o.several || len(o.Signature) > 0
			o.Signature = append(o.Signature, line[len(own):]...)
			inSignature, inOther = true, false
			content = rest
			continue
		case bytes.HasPrefix(line, []byte("gpgsig")):
			inOther = true
		case inOther && line[0] != ' ':
			inOther = false
		}
		inSignature = false
		if line[0] == '\n' { // the message
			o.Payload = append(o.Payload, content...)
			return
		}
		if !inOther {
			o.Payload = append(o.Payload, line...)
		}
		content = rest
	}
}

// splitTag separates the signature at the end. As in git, it begins at the last line that begins one.
func (o *Object) splitTag(content []byte) {
	at := len(content)
	for from := 0; from < len(content); {
		line, _ := cutLine(content[from:])
		if armorOf(line) != "" {
			at = from
		}
		from += len(line)
	}
	o.Signature = content[at:]
	o.Payload = withoutSignatures(content[:at])
}

// withoutSignatures removes the headers that have the signatures of objects of another format.
func withoutSignatures(content []byte) []byte {
	head, _, _ := bytes.Cut(content, []byte("\n\n"))
	if !bytes.Contains(head, []byte("\ngpgsig")) {
		return content
	}
	var kept []byte
	for inSignature := false; len(content) > 0; {
		line, rest := cutLine(content)
		if line[0] == '\n' {
			return append(kept, content...)
		}
		inSignature = inSignature && line[0] == ' ' || bytes.HasPrefix(line, []byte("gpgsig-sha256 "))
		if !inSignature {
			kept = append(kept, line...)
		}
		content = rest
	}
	return kept
}

// cutLine returns the first line, with its end, and the rest.
func cutLine(content []byte) (line, rest []byte) {
	if i := bytes.IndexByte(content, '\n'); i >= 0 {
		return content[:i+1], content[i+1:]
	}
	return content, nil
}

func (o *Object) readHeaders() {
	for content := o.Payload; len(content) > 0; {
		line, rest := cutLine(content)
		if line[0] == '\n' {
			return
		}
		name, value, _ := strings.Cut(strings.TrimSuffix(string(line[:min(len(line), 2048)]), "\n"), " ")
		switch {
		case name == "parent" && o.Kind == Commit:
			o.Parents = append(o.Parents, value)
		case name == "tag" && o.Kind == Tag && o.Name == "":
			o.Name = value
		case name == "object" && o.Kind == Tag && o.Target == "":
			o.Target = value
		case name == "committer" && o.Kind == Commit, name == "tagger" && o.Kind == Tag:
			if o.Time.IsZero() && !o.badTime {
				o.Time, o.badTime = dateOf(value)
			}
		}
		content = rest
	}
}

// dateOf returns the date in "name <email> 1700000000 +0100".
func dateOf(identity string) (at time.Time, bad bool) {
	fields := strings.Fields(identity[strings.LastIndexByte(identity, '>')+1:])
	if len(fields) == 0 {
		return time.Time{}, true
	}
	seconds, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil || seconds < 0 || seconds > maxTime {
		return time.Time{}, true
	}
	return time.Unix(seconds, 0), false
}

const maxTime = 253402300799 // the end of the year 9999

// armorOf returns "openpgp", "ssh" or "x509" by the first line of a signature, or "".
func armorOf(signature []byte) string {
	for begin, format := range map[string]string{
		"-----BEGIN PGP SIGNATURE-----": OpenPGP, "-----BEGIN PGP MESSAGE-----": OpenPGP,
		"-----BEGIN SSH SIGNATURE-----":  SSH,
		"-----BEGIN SIGNED MESSAGE-----": x509,
	} {
		if bytes.HasPrefix(signature, []byte(begin)) {
			return format
		}
	}
	return ""
}
