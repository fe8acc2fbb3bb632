-- Settle: publish outputs of entries, update state and acknowledge the entries, atomically for each entry. A
-- dead letter is another output: the original entry with the reason. groups.lua precedes this script.
--
-- KEYS    1 stream   2 due index   3 failed attempts   4 parked index   5 labels; see label in scripts.go
--         then, as ARGV requires: the guard's key, further guards' keys, the queue of the guard's lease;
--         for each entry the dead stream, output streams, hashes
-- ARGV    1 group   2 consumer
--         0 without a guard; or 1, its owner and fence, the number of further guards, owner and fence of each,
--         and 0, or 1 to release the guard's lease unless someone waits for it, followed by the range of labels
--         of the entry's siblings for ZRANGEBYLEX
--         number of entries, at most 256; then for each its ID, the name that it must be pending under, and
--         0, or 1 for a dead letter, followed by the stream's cap, reason, class, error and attempts
--         number of outputs; for each the number of its fields and values, and these
--         number of hashes; for each 1 to clear it first, else 0, ms until it expires, or 0, the number of fields to
--         remove, and these, the number of its fields and values, and these
-- Returns for each entry
--         "settled"    done; otherwise nothing changed:
--         "already"    the entry is not pending: it was settled before
--         "gone"       the entry is not in the stream either: it was settled and trimmed, or Redis lost its
--                      data
--         "not owner"  the entry is pending under another name, or the group was recreated and has not read
--                      it yet
--         "guard"      a lease is not held by that owner with that fence, or has expired
--         followed by "returned" if the lease was released
-- Refuses with WRONGTYPE if a key has another type, and with NOGROUP, without changing anything.
local group, consumer = ARGV[1], ARGV[2]
local stream, due, failures, parked_index, labels = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

-- Scripts do not roll back, so read and check everything before the first write.
local argAt, keyAt = 2, 5
local function arg() argAt = argAt + 1; return ARGV[argAt] end
local function key() keyAt = keyAt + 1; return KEYS[keyAt] end
local function list()
  local l = {}
  for i = 1, tonumber(arg()) do l[i] = arg() end
  return l
end

local guard, entries = nil, {}
if arg() == '1' then
  guard = {key = key(), owner = arg(), fence = arg(), also = {}}
  for i = 1, tonumber(arg()) do guard.also[i] = {key = key(), owner = arg(), fence = arg()} end
  if arg() == '1' then guard.queue, guard.from, guard.to = key(), arg(), arg() end
end
for n = 1, tonumber(arg()) do
  local e = {id = arg(), owner = arg(), outputs = {}, hashes = {}}
  if arg() == '1' then e.dead = {key = key(), cap = arg(), reason = arg(), class = arg(), error = arg(), attempts = arg()} end
  for i = 1, tonumber(arg()) do e.outputs[i] = {key = key(), fields = list()} end
  for i = 1, tonumber(arg()) do e.hashes[i] = {key = key(), clear = arg() == '1', expire = arg(), drop = list(), fields = list()} end
  entries[n] = e
end

local time = redis.call('TIME')
local function holds(g)
  local h = redis.call('HMGET', g.key, 'owner', 'fence', 'expires')
  local now = time[1] * 1000000 + time[2]
  return h[1] == g.owner and h[2] == g.fence and (tonumber(h[3] or '') or 0) > now
end
local held = true
if guard then
  held = holds(guard)
  for _, g in ipairs(guard.also) do held = held and holds(g) end
end

-- verdict_without_owner returns the verdict on an entry that is not pending.
local function verdict_without_owner(id)
  for _, info in ipairs(groups_of(stream)) do
    if info['name'] == group and precedes(info['last-delivered-id'], id) then return 'not owner' end
  end
  return redis.call('XRANGE', stream, id, id)[1] and 'already' or 'gone'
end

local kinds = {}
local function expect(k, kind)
  kinds[k] = kinds[k] or redis.call('TYPE', k)['ok']
  return kinds[k] == kind or kinds[k] == 'none'
end

local verdicts, sound = {}, true
for n, e in ipairs(entries) do
  local pending = redis.call('XPENDING', stream, group, e.id, e.id, 1)[1]
  if not pending then
    verdicts[n] = verdict_without_owner(e.id)
  elseif pending[2] ~= e.owner then
    verdicts[n] = 'not owner'
  elseif not held then
    verdicts[n] = 'guard'
  else
    verdicts[n] = 'settled'
    sound = sound and (not e.dead or expect(e.dead.key, 'stream'))
    for _, o in ipairs(e.outputs) do sound = sound and expect(o.key, 'stream') end
    for _, h in ipairs(e.hashes) do sound = sound and expect(h.key, 'hash') end
  end
end
if not sound then
  return redis.error_reply('WRONGTYPE an output is not a stream or a state is not a hash; nothing was settled')
end

local function add_dead_letter(id, dead)
  local at = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
  local letter = {'reason', dead.reason, 'class', dead.class, 'error', dead.error, 'attempts', dead.attempts,
    'stream', stream, 'group', group, 'entry', id, 'consumer', consumer, 'at', at}
  local original = redis.call('XRANGE', stream, id, id)[1]
  local fields = original and original[2] or {}
  -- Lua limits the number of arguments.
  for i = 1, math.min(#fields, 2000), 2 do
    letter[#letter + 1] = 'original:' .. fields[i]
    letter[#letter + 1] = fields[i + 1]
  end
  if #fields > 2000 then
    letter[#letter + 1] = 'truncated'
    letter[#letter + 1] = string.format('%.0f of %.0f fields', 1000, #fields / 2)
  end
  redis.call('XADD', dead.key, 'MAXLEN', '~', dead.cap, '*', unpack(letter))
end

for n, e in ipairs(entries) do
  if verdicts[n] == 'settled' then
    for _, o in ipairs(e.outputs) do
      redis.call('XADD', o.key, '*', unpack(o.fields))
    end
    if e.dead then add_dead_letter(e.id, e.dead) end
    for _, h in ipairs(e.hashes) do
      if h.clear then redis.call('DEL', h.key) end
      for i = 1, #h.drop, 1000 do
        redis.call('HDEL', h.key, unpack(h.drop, i, math.min(i + 999, #h.drop)))
      end
      for i = 1, #h.fields, 1000 do -- Lua passes a bounded number of arguments
        redis.call('HSET', h.key, unpack(h.fields, i, math.min(i + 999, #h.fields)))
      end
      if h.expire ~= '0' then redis.call('PEXPIRE', h.key, h.expire) end
    end
    redis.call('XACK', stream, group, e.id)
    redis.call('ZREM', due, e.id)
    redis.call('HDEL', failures, e.id, e.id .. ':deaths')
    local label = e.owner ~= consumer and redis.call('HGET', labels, e.id)
    if label then
      redis.call('ZREM', parked_index, label)
      redis.call('HDEL', labels, e.id)
    end
  end
end

local function awaited()
  return redis.call('EXISTS', guard.queue) == 1
    or redis.call('ZRANGEBYLEX', parked_index, guard.from, guard.to, 'LIMIT', 0, 1)[1]
end
if guard and guard.queue and verdicts[1] == 'settled' and not awaited() then
  redis.call('HDEL', guard.key, 'owner', 'expires')
  verdicts[#verdicts + 1] = 'returned'
end
return verdicts
