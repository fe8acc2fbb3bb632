package watch

import (
	"context"
	"encoding/json"
	"maps"
	"net/url"
	"strings"
	"unicode"

	"lockstep/events"
	"lockstep/internal/unknown"
)

// Move gives the watches of one repository to another path, at the remote moved, in one step, and returns how
// many it changed. One that goes by SSH goes on doing so, and one over HTTP too. A watch of the same app and refs
// that is there already stays as it is. A look at the remote is asked for, and no removal. Done again it finds
// nothing to move. From and to may be one repository: of a new spelling, or at a new URL.
//
// It refuses to move to where another remote is watched, or to a path above or below one that is.
func (r *Registry) Move(ctx context.Context, from, to events.RepoPath, moved string) (n int, err error) {
	err = r.untilWritten(ctx, from, func() error {
		n = 0
		was, err := r.load(ctx, from)
		if err != nil {
			return err
		}
		watches, err := was.watches()
		if err != nil || len(watches) == 0 {
			return err
		}
		there, docs := was, map[string]string{}
		if !from.Equal(to) {
			if there, err = r.load(ctx, to); err != nil {
				return err
			}
			maps.Copy(docs, there.docs)
			if err := there.checkRemote(moved); err != nil {
				return err
			}
		}
		for _, w := range watches {
			w.Repo, w.URL = to, wayTo(moved, w.URL)
			if _, ok := docs[w.Key().field()]; ok {
				n++
				continue
			}
			doc, err := w.inPlaceOf(was.docs[w.Key().field()])
			if err != nil {
				return err
			}
			if doc != was.docs[w.Key().field()] {
				n++
			}
			docs[w.Key().field()] = doc
		}
		if n == 0 {
			return nil
		}
		if err := tooMany(to, len(docs)); err != nil {
			return err
		}
		rewrites := []rewrite{{there, docs}}
		if from.Equal(to) {
			rewrites[0].was.spelled = to.String()
		} else {
			rewrites = append(rewrites, rewrite{was: was})
		}
		return r.write(ctx, []events.Change{{Type: events.ChangeDue, Source: source, Repo: to}}, rewrites...)
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// wayTo is the URL of the remote at moved by which it is fetched as it was so far, by SSH or over HTTP: a credential is of
// one of the two. It is moved itself where the other need not be the same repository.
func wayTo(moved, soFar string) string {
	if isSSH(moved) == isSSH(soFar) {
		return moved
	}
	there, err := url.Parse(moved)
	way, otherErr := url.Parse(soFar)
	if err != nil || otherErr != nil {
		return moved
	}
	way.Path, way.RawPath = there.Path, there.RawPath
	if text := way.String(); events.CheckRemote(text) == nil && events.CanonicalRemote(text) == events.CanonicalRemote(moved) {
		return text
	}
	return moved
}

// checkRemote refuses another remote than the one watched.
func (c contents) checkRemote(remote string) error {
	watches, err := c.watches()
	if err != nil {
		return err
	}
	for _, w := range watches {
		if events.CanonicalRemote(w.URL) != events.CanonicalRemote(remote) {
			return conflict("%s is watched at %s by app %s; what moves there is at %s", c.repo, events.CanonicalRemote(w.URL), w.App, events.CanonicalRemote(remote))
		}
	}
	return nil
}

// document is the watch as the registry keeps it. It refuses what could not be read again.
func (w Watch) document() (string, error) {
	w, err := New(w)
	if err != nil {
		return "", events.Errorf(events.Permanent, events.ClassMalformed, "watch: %w", err)
	}
	doc, err := json.Marshal(w)
	return string(doc), err
}

// inPlaceOf is the watch's document in the place of another version of it, with the fields that only the one who
// wrote that knows.
func (w Watch) inPlaceOf(old string) (string, error) {
	doc, err := w.document()
	if err != nil {
		return "", err
	}
	others, err := unknown.Fields([]byte(old), Watch{})
	if err != nil {
		return "", err
	}
	whole, err := unknown.AddTo([]byte(doc), others)
	return string(whole), err
}

// Silence notes that the app of a watch is not to be notified any more: since when and why, in a few words, as
// "2026-11-21T18:00:00Z answered 410 Gone". What was noted first stays. Nothing is asked for. To put the watch again, without [Watch.Silenced], is what ends
// it. A watch that is not there any more, or is to be notified at another URL by now, is none to silence.
func (r *Registry) Silence(ctx context.Context, w Watch, why string) error {
	field := w.Key().field()
	return r.edit(ctx, w.Repo, false, func(docs map[string]string) error {
		doc, ok := docs[field]
		if !ok {
			return nil
		}
		now, err := parse([]byte(doc))
		if err != nil || now.Silenced != "" || now.NotifyURL != w.NotifyURL {
			return err
		}
		now.Silenced = words(why)
		docs[field], err = now.inPlaceOf(doc)
		return err
	})
}

// words is text on one line, and not much of it.
func words(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))
	if runes := []rune(text); len(runes) > 200 {
		return string(runes[:200]) + "…"
	}
	return text
}
