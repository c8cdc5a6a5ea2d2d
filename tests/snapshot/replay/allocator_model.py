"""A slow, simple model of PyTorch's caching allocator, with which `SimulatedAllocator` is compared."""

from dataclasses import dataclass

MIB = 1 << 20


class SimulatedOutOfMemoryError(Exception):
    pass


@dataclass
class Block:
    address: int
    size: int
    used: bool = False
    mapped: bool = True


@dataclass
class Segment:
    address: int
    stream: int
    small: bool
    expandable: bool
    blocks: list

    def merged(self):
        result = []
        for block in self.blocks:
            last = result[-1] if result else None
            if last and not last.used and not block.used and last.mapped == block.mapped:
                last.size += block.size
            else:
                result.append(block)
        self.blocks = result


class Reference:
    def __init__(self, choose_address, *, expandable, max_split, large_segment, limit, total):
        self.choose_address = choose_address
        self.expandable = expandable
        self.max_split = max_split
        self.large_segment = large_segment
        self.limit = limit
        self.total = total
        self.segments = []

    @property
    def reserved(self):
        return sum(block.size for segment in self.segments for block in segment.blocks if block.mapped)

    def allocate(self, size, stream):
        small = size <= MIB
        found = self.find(size, stream, small)
        for _ in range(2):
            found = found or self.add_memory(size, stream, small)
            if not found and self.max_split and self.release_oversize(size, stream, small):
                found = self.add_memory(size, stream, small)
            if found:
                break
            self.release()
        if not found:
            raise SimulatedOutOfMemoryError
        segment, block = found
        rest = block.size - size
        if rest >= 512 if small or self.expandable else rest > MIB and size < (self.max_split or 1 << 60):
            segment.blocks.insert(segment.blocks.index(block) + 1, Block(block.address + size, rest))
            block.size = size
        block.used = True
        return block.address, block.size

    def find(self, size, stream, small):
        def order(item):
            return item[1].size, item[1].address

        free = sorted(
            (
                (segment, block)
                for segment in self.segments
                if (segment.stream, segment.small) == (stream, small)
                for block in segment.blocks
                if block.mapped and not block.used and block.size >= size
            ),
            key=order,
        )
        if not free:
            return None
        place = 0
        while (
            free[place][0].expandable
            and place + 1 < len(free)
            and self.room(*free[place + 1]) < self.room(*free[place])
        ):
            place += 1
        block = free[place][1]
        if self.max_split and (
            size < self.max_split <= block.size or (size >= self.max_split and block.size >= size + self.large_segment)
        ):
            return None
        return free[place]

    def room(self, segment, block):
        place = segment.blocks.index(block) + 1
        unmapped = place < len(segment.blocks) and not segment.blocks[place].mapped
        return block.size + (segment.blocks[place].size if unmapped else 0)

    def add_memory(self, size, stream, small):
        new = 2 * MIB if small else self.large_segment if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        if self.expandable:
            return self.map(size, stream, small)
        if self.limit is not None and self.reserved + new > self.limit:
            return None
        block = Block(self.choose_address(new), new)
        segment = Segment(block.address, stream, small, False, [block])
        self.segments.append(segment)
        return segment, block

    def map(self, size, stream, small):
        unit = 2 * MIB if small else self.large_segment
        ranges = [s for s in self.segments if (s.stream, s.small, s.expandable) == (stream, small, True)]
        for segment in sorted(ranges, key=lambda segment: segment.address):
            for place, block in enumerate(segment.blocks):
                if block.mapped:
                    continue
                first = place - 1 if place and not segment.blocks[place - 1].used else place
                last = first
                while last < len(segment.blocks) and not segment.blocks[last].used:
                    last += 1
                if sum(block.size for block in segment.blocks[first:last]) >= size:
                    return self.map_from(segment, segment.blocks[first], size, unit)
        length = -(-(self.total + self.total // 8) // unit) * unit
        address = self.choose_address(length)
        self.segments.append(Segment(address, stream, small, True, [Block(address, length, mapped=False)]))
        return self.map_from(self.segments[-1], self.segments[-1].blocks[0], size, unit)

    def map_from(self, segment, block, size, unit):
        start = block.address
        while True:
            block = next(block for block in segment.blocks if block.address == start)
            if block.mapped and block.size >= size:
                return segment, block
            place = segment.blocks.index(block) + (1 if block.mapped else 0)
            wanted = size - block.size if block.mapped else size
            target = segment.blocks[place]
            length = min(-(-min(wanted, target.size) // unit) * unit, target.size)
            if self.limit is not None and self.reserved + length > self.limit:
                return None
            rest = Block(target.address + length, target.size - length, mapped=False)
            segment.blocks[place : place + 1] = [Block(target.address, length), *([rest] if rest.size else [])]
            segment.merged()

    def free(self, address):
        for segment in self.segments:
            for block in segment.blocks:
                if block.used and block.address == address:
                    block.used = False
                    segment.merged()
                    return

    def release(self):
        self.segments = [s for s in self.segments if s.expandable or len(s.blocks) > 1 or s.blocks[0].used]
        for segment in self.segments:
            if not segment.expandable:
                continue
            unit = 2 * MIB if segment.small else self.large_segment
            for block in list(segment.blocks):
                offset = block.address - segment.address
                first = segment.address + -(-offset // unit) * unit
                last = segment.address + (offset + block.size) // unit * unit
                if block.used or not block.mapped or first >= last:
                    continue
                parts = [
                    Block(block.address, first - block.address),
                    Block(first, last - first, mapped=False),
                    Block(last, block.address + block.size - last),
                ]
                place = segment.blocks.index(block)
                segment.blocks[place : place + 1] = [part for part in parts if part.size]
            segment.merged()

    def release_oversize(self, size, stream, small):
        wanted = max(size, self.max_split)
        whole = [
            s
            for s in self.segments
            if (s.stream, s.small, s.expandable) == (stream, small, False)
            and len(s.blocks) == 1
            and not s.blocks[0].used
        ]
        whole.sort(key=lambda segment: (segment.blocks[0].size, segment.address))
        large = [segment for segment in whole if segment.blocks[0].size >= wanted]
        if large:
            self.segments.remove(large[0])
            return True
        released = 0
        for segment in reversed(whole):
            if released >= wanted or segment.blocks[0].size < self.max_split:
                break
            released += segment.blocks[0].size
            self.segments.remove(segment)
        return released >= wanted
