package stream

import (
	"context"
	"fmt"
)

// missingPasses is the number of passes in a row that must miss a group before its keys are removed, because consumers
// re-create a group that Redis has lost.
const missingPasses = 2

// forgetDeletedGroups removes the keys of groups that an earlier pass has seen and that no longer exist.
func (t *Trimmer) forgetDeletedGroups(ctx context.Context, topic string) error {
	infos, err := t.Redis.XInfoGroups(ctx, topic).Result()
	if err != nil && !noKey(err) {
		return fmt.Errorf("groups of %s: %w", topic, err)
	}
	groups := t.groups[topic]
	if groups == nil {
		groups = make(map[string]int)
		t.groups[topic] = groups
	}
	for name := range groups {
		groups[name]++
	}
	for _, info := range infos {
		groups[info.Name] = 0
	}
	for name, missing := range groups {
		if missing < missingPasses {
			continue
		}
		if err := t.forget(ctx, topic, name); err != nil {
			return err
		}
		delete(groups, name)
	}
	return nil
}

func (t *Trimmer) forget(ctx context.Context, topic, group string) error {
	keys := []string{topic}
	for _, kind := range []string{"due", "failures", "parked", "labels"} {
		keys = append(keys, indexKey(t.Prefix, kind, topic, group))
	}
	removed, err := forgetScript.Run(ctx, t.Redis, keys, group).Int64()
	if err != nil {
		return fmt.Errorf("remove the keys of group %s of %s: %w", group, topic, err)
	}
	if removed > 0 {
		t.Log.InfoContext(ctx, "keys of a deleted consumer group removed", "stream", topic, "group", group,
			"keys", removed)
	}
	return nil
}
