-- Trim: remove settled entries and, if the stream is too long, the oldest ones. groups.lua precedes this script.
--
-- An entry is settled when it is below the floor: the lowest ID, over all groups, of the group's first pending
-- entry or else of its last read one. Entries at or above the floor are removed only if the stream is too long.
--
-- KEYS    1 stream
-- ARGV    1 how long to keep settled entries, ms   2 how long to keep entries of a stream without groups, ms
--         3 maximum length of the stream, at least 1   4 maximum number of entries to remove per call
--         5 how many of these may be at or above the floor
-- Returns {settled, aged, capped, slowest, floor, {group, lost, ...}}
--         settled: entries removed below the floor for their age
--         aged: the same for a stream without groups
--         capped: entries removed because the stream is too long
--         slowest, floor: the group that holds the floor, and the floor's ID; "" without groups
--         lost: how many of the capped entries the group had not settled; groups without losses are omitted
--         Call it again until it removes nothing.
-- Refuses with WRONGTYPE if the key is not a stream, without changing anything.
--
-- XTRIM with "~" removes whole nodes, a hundred entries by default, and honours LIMIT. The embedded Redis treats
-- "~" as exact and ignores LIMIT: there a stream that is too long loses all settled entries.
local stream = KEYS[1]
local keep, age, cap = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local most, above = tonumber(ARGV[4]), tonumber(ARGV[5])

local first = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
if not first then return {0, 0, 0, '', '', {}} end

-- Ignore pending IDs below the first entry: those entries were trimmed.
local groups, slowest, floor = groups_of(stream), '', ''
for _, g in ipairs(groups) do
  local at = g['last-delivered-id']
  local pending = redis.call('XPENDING', stream, g['name'], first[1], '+', 1)[1]
  if pending and precedes(pending[1], at) then at = pending[1] end
  if floor == '' or precedes(at, floor) then slowest, floor = g['name'], at end
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function before(ms) return string.format('%.0f-0', math.max(0, now - ms)) end

local settled, aged, capped, losses = 0, 0, 0, {}
if floor == '' then
  aged = redis.call('XTRIM', stream, 'MINID', '~', before(age), 'LIMIT', most)
else
  local old = before(keep)
  settled = redis.call('XTRIM', stream, 'MINID', '~', precedes(floor, old) and floor or old, 'LIMIT', most)
end

local excess = math.min(redis.call('XLEN', stream) - cap, most)
if excess > 0 and floor == '' then
  capped = redis.call('XTRIM', stream, 'MAXLEN', '=', redis.call('XLEN', stream) - excess)
elseif excess > 0 then
  capped = redis.call('XTRIM', stream, 'MINID', '~', floor, 'LIMIT', excess)
  if capped == 0 then -- no whole node is below the floor, so unsettled entries go: count them
    local oldest = redis.call('XRANGE', stream, '-', '+', 'COUNT', math.min(excess, above) + 1)
    local cut = oldest[#oldest][1]
    for _, g in ipairs(groups) do
      local lost = 0
      for _, p in ipairs(redis.call('XPENDING', stream, g['name'], oldest[1][1], cut, #oldest)) do
        if p[1] ~= cut then lost = lost + 1 end
      end
      for i = 1, #oldest - 1 do
        if precedes(g['last-delivered-id'], oldest[i][1]) then lost = lost + 1 end
      end
      if lost > 0 then
        losses[#losses + 1] = g['name']
        losses[#losses + 1] = lost
      end
    end
    capped = redis.call('XTRIM', stream, 'MINID', '=', cut)
  end
end
return {settled, aged, capped, slowest, floor, losses}
