package signatures

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"lockstep/events"
	"lockstep/internal/git/signature"
	"lockstep/internal/volume"
)

// The cost of one verification is bounded: beyond these limits, older commits are not verified.
const (
	maxVerified      = 1000
	maxVerifiedBytes = 64 << 20
)

// question is what is to be verified. Watches with the same one share a verdict.
type question struct {
	keys string // name of the credential
	all  bool   // the commits since base, not only the last one
	base string // what was published last
	now  string // what is published, if the history since base is not known
}

// verify verifies the tag or commit that a ref names and, if it is a commit, the others that are asked for.
func (p *part) verify(ctx context.Context, q question, c volume.Candidate) (events.Verification, error) {
	v := events.Verification{Object: "commit", ID: c.Object, Reason: p.keys[q.keys].invalid}
	if v.Reason != "" {
		return v, nil
	}
	keys, err := signature.ParseKeys(p.keys[q.keys].files)
	if err != nil {
		v.Reason = fmt.Sprintf("the keys of credential %q cannot be used: %v", q.keys, err)
		return v, nil
	}
	o := &objects{read: c.Read, keys: keys, now: time.Now()}
	object, first, err := o.verify(c.Object)
	if err != nil {
		return v, err
	}
	v.Object, v.By, v.Key, v.Format, v.Reason = string(object.Kind), first.By, first.Key, first.Format, first.Reason
	if object.Kind == signature.Tag {
		target, err := o.peel(object)
		if err != nil {
			return v, err
		}
		if reason := wrongTag(object, target, c.Tip); v.Reason == "" && reason != "" {
			v.By, v.Key, v.Reason = "", "", reason
		}
		v.Verified = v.Reason == ""
		return v, nil
	}
	history, err := c.Since(ctx, q.base)
	if err == nil && history.Unknown && q.now != "" {
		history, err = c.Since(ctx, q.now)
	}
	if err != nil {
		return v, err
	}
	older := history.Commits[min(1, len(history.Commits)):]
	if v.Partial = history.Partial || !q.all && len(older) > 0; !q.all {
		older = nil
	}
	err = o.verifyAll(ctx, older, &v)
	return v, err
}

// objects reads and verifies commits and tags.
type objects struct {
	read  func(id string) (kind string, content []byte, err error)
	keys  *signature.Keys
	now   time.Time
	bytes int // read
}

func (o *objects) parse(id string) (signature.Object, error) {
	kind, content, err := o.read(id)
	if err != nil {
		return signature.Object{}, err
	}
	o.bytes += len(content)
	format := signature.SHA1
	if len(id) == 2*sha256.Size {
		format = signature.SHA256
	}
	object, err := signature.Parse(signature.Kind(kind), content, format)
	if err != nil {
		return object, events.Errorf(events.Permanent, events.ClassNoRef, "%.12s: %w", id, err)
	}
	return object, nil
}

func (o *objects) verify(id string) (signature.Object, signature.Verdict, error) {
	object, err := o.parse(id)
	if err != nil {
		return object, signature.Verdict{}, err
	}
	return object, o.keys.Verify(object, o.now), nil
}

// verifyAll verifies older commits after the first, whose verdict is v, until one is not verified.
func (o *objects) verifyAll(ctx context.Context, older []string, v *events.Verification) error {
	for v.Commits = 1; v.Reason == "" && v.Commits <= len(older); v.Commits++ {
		if v.Commits == maxVerified || o.bytes > maxVerifiedBytes {
			v.Partial = true
			break
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		id := older[v.Commits-1]
		_, next, err := o.verify(id)
		if err != nil {
			return err
		}
		if !next.Verified() {
			v.ID, v.By, v.Key, v.Format, v.Reason = id, "", "", next.Format, next.Reason
		}
	}
	if v.Verified = v.Reason == ""; !v.Verified {
		v.Commits, v.Partial = 0, false
	}
	return nil
}

// wrongTag returns why a tag, which finally points to target, is not that of a tip, or "".
func wrongTag(tag signature.Object, target string, tip volume.Tip) string {
	if target != tip.Commit { // the remote says which commit its tag is of
		return fmt.Sprintf("it is a tag of %.12s, not of commit %.12s", target, tip.Commit)
	}
	if name, isTag := strings.CutPrefix(tip.Ref.String(), "refs/tags/"); isTag && tag.Name != name {
		return fmt.Sprintf("it is the tag %.100q under another name", tag.Name)
	}
	return ""
}

// maxTags limits how many tags may point to each other.
const maxTags = 10

// peel returns the object that a tag finally points to.
func (o *objects) peel(tag signature.Object) (target string, err error) {
	for range maxTags {
		next, err := o.parse(tag.Target)
		if err != nil || next.Kind != signature.Tag {
			return tag.Target, err
		}
		tag = next
	}
	return tag.Target, nil
}
