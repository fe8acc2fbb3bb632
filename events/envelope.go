package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"mime"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	specVersion = "1.0"
	contentJSON = "application/json"
	maxDocument = 1 << 20 // bytes
)

// envelope is a CloudEvents 1.0 document in structured JSON mode.
type envelope[T any] struct {
	SpecVersion     string `json:"specversion"`
	ID              string `json:"id"`
	Source          string `json:"source"`
	Type            string `json:"type"`
	Subject         string `json:"subject,omitempty"`
	Time            string `json:"time,omitempty"`
	DataContentType string `json:"datacontenttype,omitempty"`
	Data            T      `json:"data"`
}

// The data of a document: the types without their methods.
type (
	changeData Change
	resultData Result
)

// MarshalJSON encodes the change as a CloudEvents document.
func (c Change) MarshalJSON() ([]byte, error) {
	return json.Marshal(envelope[changeData]{
		SpecVersion: specVersion, ID: c.ID, Source: c.Source, Type: string(c.Type),
		Subject: c.Repo.String(), Time: formatTime(c.Time), DataContentType: contentJSON,
		Data: changeData(c),
	})
}

// MarshalJSON encodes the result as a CloudEvents document.
func (r Result) MarshalJSON() ([]byte, error) {
	r.Took /= time.Millisecond // a number of ms in the document
	return json.Marshal(envelope[resultData]{
		SpecVersion: specVersion, ID: r.ID, Source: r.Source, Type: string(r.Type),
		Subject: r.Repo.String(), Time: formatTime(r.Time), DataContentType: contentJSON,
		Data: resultData(r),
	})
}

// ParseChange parses a CloudEvents document, or a flat JSON object with the fields repo, url, to, ref, type,
// id, app, credential, before, after, pin, force, depth, submodules and on_busy, all strings, as redis-cli's
// XADD writes them. The flat form may omit id; the caller then uses the ID of the stream entry. Unknown
// fields are ignored. An error has the disposition [Malformed].
func ParseChange(document []byte) (Change, error) {
	if len(document) > maxDocument {
		return Change{}, malformed(fmt.Errorf("longer than %d bytes", maxDocument))
	}
	cloudEvent, err := isCloudEvent(document)
	if err != nil {
		return Change{}, malformed(fmt.Errorf("neither a CloudEvents document nor plain fields: %w", err))
	}
	parse := parsePlain
	if cloudEvent {
		parse = parseCloudEvent
	}
	c, err := parse(document)
	if c.OnBusy == "" {
		c.OnBusy = BusyWait
	}
	if err == nil {
		err = c.check()
	}
	if err != nil {
		return Change{}, malformed(err)
	}
	return c, nil
}

// isCloudEvent reports whether document has a specversion and is therefore not in the flat form.
func isCloudEvent(document []byte) (bool, error) {
	if bytes.HasPrefix(document, []byte(`{"specversion":`)) { // as MarshalJSON writes it; avoids parsing twice
		return true, nil
	}
	var probe struct {
		SpecVersion *string `json:"specversion"`
	}
	err := decode(document, &probe)
	return probe.SpecVersion != nil, err
}

func parseCloudEvent(document []byte) (Change, error) {
	var doc envelope[changeData]
	if err := decode(document, &doc); err != nil {
		return Change{}, err
	}
	if err := doc.check(); err != nil {
		return Change{}, err
	}
	at, err := parseTime(doc.Time)
	c := Change(doc.Data)
	c.ID, c.Type, c.Source, c.Time = doc.ID, ChangeType(doc.Type), doc.Source, at
	return c, err
}

func parsePlain(document []byte) (Change, error) {
	var f struct {
		ID         string     `json:"id"`
		Type       string     `json:"type"`
		Repo       RepoPath   `json:"repo"`
		URL        string     `json:"url"`
		To         RepoPath   `json:"to"`
		Ref        Ref        `json:"ref"`
		App        string     `json:"app"`
		Credential string     `json:"credential"`
		Before     string     `json:"before"`
		After      string     `json:"after"`
		Pin        string     `json:"pin"`
		Force      string     `json:"force"`
		Depth      Depth      `json:"depth"`
		OnBusy     BusyPolicy `json:"on_busy"`
		Submodules Submodules `json:"submodules"`
	}
	if err := decode(document, &f); err != nil {
		return Change{}, err
	}
	c := Change{
		ID: f.ID, Type: plainType(f.Type), Source: "/lockstep/plain", Repo: f.Repo, URL: f.URL, To: f.To, Ref: f.Ref,
		App: f.App, Credential: f.Credential, Before: f.Before, After: f.After, Depth: f.Depth, OnBusy: f.OnBusy,
		Submodules: f.Submodules,
	}
	var err error
	if c.Repo.IsZero() && f.URL != "" && c.Type != ChangeMoved { // the url of a move is the new one
		if c.Repo, err = RepoPathFromURL(f.URL); err != nil {
			return Change{}, err
		}
	}
	if c.Force, err = parseBool("force", f.Force); err != nil {
		return Change{}, err
	}
	c.Pin, err = parseBool("pin", f.Pin)
	return c, err
}

func parseBool(field, text string) (bool, error) {
	if text == "" {
		return false, nil
	}
	b, err := strconv.ParseBool(text)
	if err != nil {
		return false, fmt.Errorf("%s %s: want true or false", field, quote(text))
	}
	return b, nil
}

// plainType expands the short type of the flat form, such as "removed", to the full name.
func plainType(s string) ChangeType {
	switch s {
	case "", "pushed":
		return ChangePushed
	case "removed":
		return ChangeRemoved
	case "moved":
		return ChangeMoved
	case "due":
		return ChangeDue
	}
	return ChangeType(s)
}

var resultTypes = []ResultType{ResultSynced, ResultFailed, ResultRemoved, ResultMoved, ResultPolled, ResultView,
	ResultPurged}

// ParseResult parses a CloudEvents document. It ensures that all paths are relative, use slashes and do not
// escape their root. It returns the same kinds of error as [ParseChange].
func ParseResult(document []byte) (Result, error) {
	r, err := parseResult(document)
	if err != nil {
		return Result{}, Errorf(Malformed, ClassConfig, "malformed result: %w", err)
	}
	return r, nil
}

func parseResult(document []byte) (Result, error) {
	var doc envelope[resultData]
	if err := decode(document, &doc); err != nil {
		return Result{}, err
	}
	if err := doc.check(); err != nil {
		return Result{}, err
	}
	if !slices.Contains(resultTypes, ResultType(doc.Type)) {
		return Result{}, fmt.Errorf("type %s is unknown", quote(doc.Type))
	}
	at, err := parseTime(doc.Time)
	if err != nil {
		return Result{}, err
	}
	if err := doc.Data.check(); err != nil {
		return Result{}, err
	}
	r := Result(doc.Data)
	r.ID, r.Type, r.Source, r.Time = doc.ID, ResultType(doc.Type), doc.Source, at
	r.Took *= time.Millisecond
	return r, nil
}

func (d resultData) check() error {
	switch {
	case d.Repo.IsZero():
		return errors.New("repo is missing")
	case d.Took < 0 || d.Took > math.MaxInt64/time.Millisecond:
		return errors.New("took_ms is out of range")
	case d.Path != "" && !fs.ValidPath(d.Path), d.Tree != "" && !fs.ValidPath(d.Tree):
		return errors.New("path or tree is not a path below the root")
	}
	for _, f := range d.Files {
		if !fs.ValidPath(f.Path) {
			return errors.New("a file's path does not lie below the tree")
		}
	}
	return nil
}

func (e envelope[T]) check() error {
	switch {
	case e.SpecVersion != specVersion:
		return fmt.Errorf("specversion %s: want %s", quote(e.SpecVersion), specVersion)
	case e.ID == "":
		return errors.New("id is missing")
	case e.Type == "":
		return errors.New("type is missing")
	}
	if e.DataContentType == "" || e.DataContentType == contentJSON {
		return nil
	}
	// A media type may have parameters, usually "; charset=utf-8".
	if media, _, _ := mime.ParseMediaType(e.DataContentType); media != contentJSON {
		return fmt.Errorf("datacontenttype %s: want %s", quote(e.DataContentType), contentJSON)
	}
	return nil
}

func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

func parseTime(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}, fmt.Errorf("time %s is not RFC 3339", quote(s))
	}
	return t.UTC(), checkTime(t)
}

// checkTime returns an error for a time that RFC 3339 cannot represent in UTC.
func checkTime(t time.Time) error {
	if year := t.UTC().Year(); year < 1 || year > 9999 {
		return errors.New("time is not in the years 1 to 9999")
	}
	return nil
}

// decode is [json.Unmarshal] with errors that do not repeat the document.
func decode(document []byte, into any) error {
	err := json.Unmarshal(document, into)
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		kind, _, _ := strings.Cut(e.Value, " ") // "number 1234…" becomes "number"
		return fmt.Errorf("field %q cannot be a JSON %s", e.Field, kind)
	}
	return err
}
